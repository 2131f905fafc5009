"""The package's log on standard error, for the command line."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote

from dislock.output import complain, write

_KEY_VALUE = re.compile(r"""password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)""", re.IGNORECASE)
#: All before the last "@"; without one, what stands where the port would be.
_USER_INFO = re.compile(r"//(.*)@")
_PORT = re.compile(r"//[^:/?]*:([^/?]*)")


def set_up_logging(level: int, url: str) -> None:
    """Let the package's own log go to standard error, one line each; tracebacks only at DEBUG.

    What other packages log is silenced: this one reports what matters to a lock itself. ``url`` and the passwords in
    it are blotted out of whatever is written, as the last line of defence.
    """
    logger = logging.getLogger("dislock")
    logger.handlers[:] = [_Lines(_secrets(url))]
    logger.setLevel(level)
    logger.propagate = False
    logging.lastResort = None


class _Lines(logging.Handler):
    def __init__(self, secrets: list[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def emit(self, record: logging.LogRecord) -> None:
        try:
            word = "warning: " if record.levelno == logging.WARNING else ""
            complain(word + self._clean(record.getMessage()))
            if record.exc_info and record.exc_info[0] and logging.getLogger("dislock").isEnabledFor(logging.DEBUG):
                write(2, self._clean(logging.Formatter().formatException(record.exc_info)) + "\n")
        except Exception:  # noqa: BLE001 - a message that cannot be formatted must not end the run
            return

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _secrets(url: str) -> list[str]:
    """The URL and what may be a password in it, longest first; also where a slip of the hand put it elsewhere.

    With an "@" forgotten or mistyped, libpq takes the password for a port or a database, and errors name those.
    """
    found = {word.strip("'") for word in _KEY_VALUE.findall(url)}
    pieces: list[str] = []
    if match := _USER_INFO.search(url):
        user, _, password = match[1].partition(":")
        if "/" in user:
            pieces = re.split("[:/?&@,]", match[1])
        else:
            found.add(password)
            pieces = re.split("[:/?&@,]", password)
    elif match := _PORT.search(url):
        pieces = [match[1], *re.split("[:@,]", match[1])]
    # Numbers are ports.
    found |= {piece for piece in pieces if not piece.isdigit()}
    found |= {unquote(word) for word in found}
    # Shorter ones are in any text, and blotting them out would only tell what they are.
    return [url, *sorted((word for word in found if len(word) > 3), key=len, reverse=True)]
