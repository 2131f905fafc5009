"""The package's log on standard error, for the command line."""

from __future__ import annotations

import logging

from dislock.cli.output import complain, write
from dislock.redaction import blot_out, secrets_of


def set_up_logging(level: int, url: str) -> None:
    """Let the package's own log go to standard error, one line each; tracebacks only at DEBUG.

    What other packages log is silenced: this one reports what matters to a lock itself. ``url`` and the passwords in
    it are blotted out of whatever is written, as the last line of defence.
    """
    logger = logging.getLogger("dislock")
    logger.handlers[:] = [_Lines(secrets_of(url))]
    # CRITICAL would hide why a run failed, which cron has to mail.
    logger.setLevel(min(level, logging.ERROR))
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
        return blot_out(text, self._secrets)
