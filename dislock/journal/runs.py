"""The journal as a list: what ran, when, where, for how long, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from dislock.journal.overdue import zone_of
from dislock.journal.rows import clock, duration, ended, host, local, state, took
from dislock.protocol.questions import RunRow
from dislock.protocol.statements import to_moment

HEADINGS = ("KEY", "TICK", "HOST", "STARTED", "TOOK", "ENDED")


def common_zone(runs: Iterable[RunRow]) -> ZoneInfo:
    """The zone of all schedules, if they have the same one; otherwise UTC."""
    zones = {zone_of(run).key: zone_of(run) for run in runs if run.time_zone is not None}
    return next(iter(zones.values())) if len(zones) == 1 else ZoneInfo("UTC")


def table(runs: Sequence[RunRow], now: int, zone: ZoneInfo) -> list[tuple[str, ...]]:
    """A row for each run, under ``HEADINGS``; times are in ``zone``."""
    lines: list[tuple[str, ...]] = []
    for run in runs:
        tick = None if run.tick is None else local(run.tick, zone)
        seconds = took(run, now)
        lines.append(
            (
                run.key,
                "-" if tick is None else f"{tick:%m-%d %H:%M}{f':{tick:%S}' if tick.second else ''}",
                host(run.owner),
                clock(run.started, zone, tick),
                "-" if seconds is None else duration(seconds),
                ended(run),
            )
        )
    return lines


def as_json(runs: Sequence[RunRow], now: int) -> list[dict[str, object]]:
    """A dictionary for each run; moments as ISO 8601 in UTC, durations in seconds."""
    return [
        {
            "id": run.id,
            "key": run.key,
            "strategy": run.strategy,
            "schedule": run.schedule,
            "time_zone": run.time_zone,
            "tick": iso(run.tick),
            "owner": run.owner,
            "host": host(run.owner),
            "token": run.token,
            "command": run.command,
            "started_at": iso(run.started),
            "ended_at": iso(run.ended),
            "took_seconds": took(run, now),
            "exit_code": run.exit_code,
            "state": state(run),
        }
        for run in runs
    ]


def iso(micros: int | None) -> str | None:
    """A moment as ISO 8601 in UTC; None for none, and for one that never comes."""
    moment: datetime | None = None if micros is None else to_moment(micros)
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
