"""Made-up rows of a journal."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from dislock.protocol.questions import LockRow, RecentRow, RunRow
from dislock.protocol.statements import to_micros

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
#: Nine o'clock of a winter's day, in UTC.
NOW = to_micros(datetime(2026, 1, 20, 9, tzinfo=timezone.utc))


def at(text: str) -> int:
    """A moment of that month in UTC, from ``day hour:minute``."""
    return to_micros(datetime.strptime(f"2026-01-{text} +0000", "%Y-%m-%d %H:%M %z"))


def run(started: int, took: int | None = MINUTE, **changes: Any) -> RunRow:
    """A success of a job that runs at three o'clock, or a run without an end."""
    values: dict[str, Any] = {
        "id": started,
        "key": "report",
        "strategy": "schedule,lease",
        "schedule": "0 3 * * *",
        "time_zone": "UTC",
        "tick": started,
        "owner": "host7:4711",
        "token": started,
        "command": "report 0a1b2c",
        "started": started,
        "ended": None if took is None else started + took,
        "exit_code": None if took is None else 0,
        "outcome": None if took is None else "success",
        "live": None if took is not None else False,
        "freed": None if took is not None else False,
    }
    return RunRow(**{**values, **changes})


def failed(started: int, code: int = 1, **changes: Any) -> RunRow:
    return run(started, exit_code=code, outcome="failure", **changes)


def recent(*runs: RunRow, first: int | None = None, success: int | None = None) -> list[RecentRow]:
    found = sorted(runs, key=lambda each: (each.key, each.started))
    firsts: dict[str, int] = {}
    for each in found:
        firsts.setdefault(each.key, each.started)
    return [RecentRow(each, firsts[each.key] if first is None else first, success) for each in found]


def lock(key: str, *, owner: str = "host7:4711", left: int = HOUR) -> LockRow:
    return LockRow(key, owner, NOW + left, NOW, left > 0)
