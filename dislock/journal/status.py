"""Who holds what now, and how the last run of each key ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dislock.context import LEASE_PREFIX, SCHEDULE_PREFIX
from dislock.journal.rows import RUNNING, UNKNOWN, clock, duration, ended, local, state
from dislock.journal.runs import iso
from dislock.protocol.questions import LockRow, RecentRow, RunRow

HEADINGS = ("KEY", "KIND", "OWNER", "ENDS IN")
MORE_HEADINGS = ("SINCE", "LAST RUN")
KINDS = {SCHEDULE_PREFIX: "slot", LEASE_PREFIX: "lease"}


class Lock(NamedTuple):
    """A lock by its job's key and its kind."""

    key: str
    kind: str
    row: LockRow


def locks(rows: Sequence[LockRow]) -> list[Lock]:
    """The locks of this program; other rows of the table are ignored."""
    return [
        Lock(row.key.removeprefix(prefix), kind, row)
        for row in rows
        for prefix, kind in KINDS.items()
        if row.key.startswith(prefix)
    ]


def table(found: Sequence[Lock], recent: Sequence[RecentRow] | None, zone: ZoneInfo) -> list[tuple[str, ...]]:
    """A row for each lock, under ``HEADINGS``, and with a journal also ``MORE_HEADINGS``; times are in ``zone``."""
    lines: list[tuple[str, ...]] = []
    for lock in found:
        left = (lock.row.expires - lock.row.now) / 1_000_000
        # The owner of a free lock is its last one.
        line: tuple[str, ...] = (
            lock.key,
            lock.kind,
            lock.row.owner,
            duration(left) if lock.row.held else "free",
        )
        if recent is not None:
            line += _history([row.run for row in recent if row.run.key == lock.key], lock, zone)
        lines.append(line)
    return lines


def as_json(found: Sequence[Lock], recent: Sequence[RecentRow] | None) -> list[dict[str, object]]:
    """A dictionary for each lock; ``ends_at`` is None if it never ends."""
    lines: list[dict[str, object]] = []
    for lock in found:
        line: dict[str, object] = {
            "key": lock.key,
            "kind": lock.kind,
            "held": lock.row.held,
            "owner": lock.row.owner,
            "ends_at": iso(lock.row.expires),
        }
        if recent is not None:
            runs = [row.run for row in recent if row.run.key == lock.key]
            current, last = _current(runs, lock), _last(runs)
            line["since"] = iso(current.started) if current else None
            line["last_run"] = None if last is None else {"ended_at": iso(last.ended), "state": state(last)}
        lines.append(line)
    return lines


def _history(runs: Sequence[RunRow], lock: Lock, zone: ZoneInfo) -> tuple[str, str]:
    current, last = _current(runs, lock), _last(runs)
    today = local(lock.row.now, zone)
    return clock(current.started, zone, today) if current else "-", "-" if last is None else ended(last)


def _current(runs: Sequence[RunRow], lock: Lock) -> RunRow | None:
    """The run that took the lock, if the lock is held and the journal knows its run."""
    if not lock.row.held:
        return None
    return next((run for run in reversed(runs) if run.owner == lock.row.owner), None)


def _last(runs: Sequence[RunRow]) -> RunRow | None:
    return next((run for run in reversed(runs) if state(run) not in (RUNNING, UNKNOWN)), None)
