"""A reader for each kind of value: it returns what the text of a setting means, or says what is wrong with it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable

from dislock.context import LONGEST_DAYS, LONGEST_KEY_BYTES, LONGEST_SECONDS, LeaseLossPolicy

SCHEDULE = "schedule"
LEASE = "lease"
ADVISORY = "advisory"
#: Levels and their numbers in ``logging``, which is not imported only to report a wrong setting.
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
#: PostgreSQL cuts longer names (NAMEDATALEN - 1), so that two settings could mean the same table.
LONGEST_NAME_BYTES = 63
#: A zone in front of the expression, as some crons and schedulers take it.
ZONE_PREFIX = re.compile(r"(CRON_)?TZ\s*=", re.IGNORECASE)


class BadValueError(Exception):
    """What is wrong with a value, as the end of a sentence that begins with the setting's name."""


def _number(text: str, low: float, *, above: bool) -> float:
    # Stricter than float(), which takes 1_0, nan and digits of other scripts.
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise BadValueError(f"must be a number of seconds, not {_shown(text)}")
    value = float(text)
    if value < low or (above and value == low) or (value == 0 and text.startswith("-")):
        bound = "more than" if above else "at least"
        raise BadValueError(f"must be {bound} {low:g}, not {_shown(text)}")
    if value > LONGEST_SECONDS or math.isinf(value):
        raise BadValueError(f"must be at most {LONGEST_SECONDS:.0f} (31 days), not {_shown(text)}")
    return value


def _shown(text: str) -> str:
    if _looks_like_url(text):
        return "this value"
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _looks_like_url(text: str) -> bool:
    """Whether it may be a connection string in the wrong place, with a password in it."""
    return "://" in text or "=" in text


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValueError("must be valid UTF-8") from None
    return text


def read_cron(text: str) -> str:
    """The text of a cron expression or a zone. Its meaning is checked when everything else is right."""
    if ZONE_PREFIX.match(text):
        raise BadValueError("must not begin with CRON_TZ=: the zone alone is the value of CRON_TZ or --time-zone")
    if _looks_like_url(text):
        raise BadValueError("must not look like a database URL")
    return _text(text)


def read_lock_key(text: str) -> str:
    """A lock key: any text that fits into a row's key."""
    size = len(_text(text).encode())
    if size > LONGEST_KEY_BYTES:
        raise BadValueError(f"must be at most {LONGEST_KEY_BYTES} bytes long, not {size}")
    return text


def read_table(text: str) -> list[str]:
    """The parts of ``table`` or ``schema.table``. A part in double quotes may hold dots; ``""`` in it is one quote."""
    parts: list[str] = []
    rest = _text(text)
    while True:
        match = re.match(r'\s*(?:"((?:[^"]|"")*)"|([^".]*))\s*(?:(\.)|$)', rest)
        if match is None:
            raise BadValueError(f"must be table or schema.table, not {_shown(text)}")
        quoted, plain, dot = match.groups()
        part = quoted.replace('""', '"') if quoted is not None else plain.strip()
        if not part:
            raise BadValueError(f"must not have an empty part: {_shown(text)}")
        if len(part.encode()) > LONGEST_NAME_BYTES:
            raise BadValueError(
                f"must have parts of at most {LONGEST_NAME_BYTES} bytes, the limit of PostgreSQL: {_shown(text)}"
            )
        parts.append(part)
        if not dot:
            break
        rest = rest[match.end() :]
    if len(parts) > 3:
        raise BadValueError(f"must be table or schema.table, not {_shown(text)}")
    return parts


def read_strategies(text: str) -> tuple[str, ...]:
    """The strategies in the order in which their locks are taken, however they are ordered in the text."""
    words = {word.strip().lower() for word in text.split(",")}
    if words == {ADVISORY}:
        return (ADVISORY,)
    if not words <= {SCHEDULE, LEASE}:
        raise BadValueError(f"must be schedule, lease, schedule,lease or advisory, not {_shown(text)}")
    return tuple(word for word in (SCHEDULE, LEASE) if word in words)


def read_policy(text: str) -> LeaseLossPolicy:
    """What happens when a lease is lost."""
    try:
        return LeaseLossPolicy(text.lower())
    except ValueError:
        raise BadValueError(f"must be terminate or continue, not {_shown(text)}") from None


def read_consumed_by(text: str) -> str:
    """What closes a tick."""
    if text.lower() not in ("start", "success"):
        raise BadValueError(f"must be start or success, not {_shown(text)}")
    return text.lower()


def read_exit_code(text: str) -> int:
    """An exit code that a process can have."""
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) > 255:
        raise BadValueError(f"must be a whole number from 0 to 255, not {_shown(text)}")
    return int(text)


def read_level(text: str) -> int:
    """The number of a level's word."""
    try:
        return LEVELS[text.upper()]
    except KeyError:
        raise BadValueError(f"must be {', '.join(LEVELS)}, not {_shown(text)}") from None


def read_days(text: str) -> int:
    """A whole number of days; 0 is allowed."""
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) > LONGEST_DAYS:
        raise BadValueError(f"must be a whole number of days from 0 to {LONGEST_DAYS}, not {_shown(text)}")
    return int(text)


def read_format(text: str) -> str:
    """The form of the log."""
    if text.lower() not in ("plain", "json"):
        raise BadValueError(f"must be plain or json, not {_shown(text)}")
    return text.lower()


def read_switch(text: str) -> bool:
    """On or off."""
    if text.lower() not in ("on", "off"):
        raise BadValueError(f"must be on or off, not {_shown(text)}")
    return text.lower() == "on"


def seconds(low: float = 0.0, *, above: bool = False) -> Callable[[str], float]:
    """A reader of seconds from ``low`` to 31 days; with ``above``, ``low`` itself is refused."""
    return lambda text: _number(text, low, above=above)


def as_utf8(text: str) -> str:
    """The operating system's text, read as UTF-8 whatever the locale: a key must be the same on every host."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
