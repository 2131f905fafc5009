"""The package's log on standard error, for the command line: plain lines, or a JSON object for each message."""

from __future__ import annotations

import logging
from abc import abstractmethod
from datetime import datetime, timezone

from dislock.cli.output import complain, one_line, ready, write
from dislock.redaction import blot_out, secrets_of

#: Seconds that a line waits for its reader, unless it is an error: a line must not hold up a renewal.
PATIENCE = 0.5


def set_up_logging(level: int, url: str, *, as_json: bool = False, with_time: bool = False) -> None:
    """Sends the package's own log to standard error, one line for each message; tracebacks only at DEBUG.

    The logs of other packages are silenced: this package itself reports what matters to a lock. As a last defence,
    ``url`` and the passwords in it are blotted out of everything that is written. ``with_time`` puts the time in front
    of plain lines; JSON always has it.
    """
    logger = logging.getLogger("dislock")
    secrets = secrets_of(url)
    logger.handlers[:] = [_Objects(secrets) if as_json else _Lines(secrets, with_time=with_time)]
    # CRITICAL would hide why a run failed, and cron must mail that.
    logger.setLevel(min(level, logging.ERROR))
    logger.propagate = False
    logging.lastResort = None


class _Sink(logging.Handler):
    """What both forms share: a message that cannot be formatted or written must not end the run."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def handle(self, record: logging.LogRecord) -> bool:
        # Without logging's lock: a thread whose line waits must not hold up the others. A line is one write.
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.levelno >= logging.ERROR or ready(2, PATIENCE):
                self.put(record)
        except Exception:  # noqa: BLE001 - whatever it is, the lock and the run go on
            return

    @abstractmethod
    def put(self, record: logging.LogRecord) -> None:
        """Writes one record."""

    def clean(self, text: str) -> str:
        return blot_out(text, self._secrets)

    def trace(self, record: logging.LogRecord) -> str:
        """The traceback at DEBUG, else nothing."""
        if record.exc_info and record.exc_info[0] and logging.getLogger("dislock").isEnabledFor(logging.DEBUG):
            return self.clean(logging.Formatter().formatException(record.exc_info))
        return ""


class _Lines(_Sink):
    def __init__(self, secrets: list[str], *, with_time: bool) -> None:
        super().__init__(secrets)
        self._with_time = with_time

    def put(self, record: logging.LogRecord) -> None:
        word = "warning: " if record.levelno == logging.WARNING else ""
        time = f"{_time(record, 'seconds')} " if self._with_time else ""
        complain(word + self.clean(record.getMessage()), time)
        if trace := self.trace(record):
            write(2, trace + "\n")


class _Objects(_Sink):
    def put(self, record: logging.LogRecord) -> None:
        import json

        event = getattr(record, "dislock", None)
        said: dict[str, object] = {
            "time": _time(record, "milliseconds"),
            "level": record.levelname.lower(),
            "event": event.name if event else "message",
            "message": one_line(self.clean(record.getMessage())),
        }
        for name, value in event.fields.items() if event else ():
            said.setdefault(name, self._plain(value))
        if trace := self.trace(record):
            said["traceback"] = trace
        write(2, json.dumps(said, ensure_ascii=False) + "\n")

    def _plain(self, value: object) -> object:
        if isinstance(value, datetime):
            return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.clean(str(value))


def _time(record: logging.LogRecord, precision: str) -> str:
    """When it was reported, by this host's clock and in this host's zone."""
    return datetime.fromtimestamp(record.created, timezone.utc).astimezone().isoformat(timespec=precision)
