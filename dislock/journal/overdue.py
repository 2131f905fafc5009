"""Which jobs are not well: missed, failed, died, held up, or running for too long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple
from zoneinfo import ZoneInfo

from dislock.errors import ConfigurationError
from dislock.journal.rows import BAD, NOT_STARTED, RUNNING, SUCCESS, UNKNOWN, duration, ended, host, state
from dislock.protocol.questions import RecentRow, RunRow
from dislock.protocol.schedule import Schedule
from dislock.protocol.statements import EPOCH, to_micros
from dislock.protocol.zones import find_zone

OK, WARNING, CRITICAL, NO_ANSWER = 0, 1, 2, 3
WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
#: A run is long if it takes more than this, and more than this many times the median of so many successes.
LONG_SECONDS = 600.0
LONG_TIMES = 3
SUCCESSES = 10


class Finding(NamedTuple):
    """The state of one key: ``level`` as a Nagios plugin's exit code, and the reason in a word and in a sentence."""

    key: str
    level: int
    word: str
    text: str


def overdue(recent: Sequence[RecentRow], now: int, *, late: float, expected: Iterable[str] = ()) -> list[Finding]:
    """One finding for each key, the worst first. ``recent``: ordered by key and start; ``now``: of the database."""
    keys: dict[str, list[RecentRow]] = {}
    for row in recent:
        keys.setdefault(row.run.key, []).append(row)
    found = [judge([row.run for row in rows], rows[0].first, now, late) for rows in keys.values()]
    found += [
        Finding(key, CRITICAL, "never ran", "it never ran: the journal has no run of it")
        for key in dict.fromkeys(expected)
        if key not in keys
    ]
    return sorted(found, key=lambda finding: (-finding.level, finding.key))


def judge(runs: Sequence[RunRow], first: int, now: int, late: float) -> Finding:
    """The state of a key. ``runs``: its newest runs, the oldest first; ``first``: when its first run of all began."""
    newest = runs[-1]
    zone = zone_of(newest)
    try:
        due = due_tick(newest, now, late)
    except ConfigurationError as error:
        return Finding(newest.key, WARNING, "schedule", f"its schedule cannot be read: {error}")
    if due is not None and due > first and due > (newest.tick or 0) and due > newest.started:
        return _missed(runs, due, zone, late)
    for run in reversed(runs):
        if state(run) in BAD:
            return Finding(run.key, CRITICAL, ended(run), _bad(run, zone))
        if state(run) not in (RUNNING, UNKNOWN):
            break
    seconds = (now - newest.started) / 1_000_000
    usual = usual_seconds(runs)
    if newest.ended is None and usual is not None and seconds > max(LONG_TIMES * usual, LONG_SECONDS):
        text = f"running for {duration(seconds)} on {host(newest.owner)}; {duration(usual)} is usual"
        if state(newest) == UNKNOWN:
            text = f"no end recorded for {duration(seconds)} on {host(newest.owner)}; {duration(usual)} is usual"
        return Finding(newest.key, WARNING, "long", text)
    when = _moment(newest.started, zone)
    word = state(newest)
    return Finding(newest.key, OK, word, f"{word}, started {when} on {host(newest.owner)}")


def due_tick(run: RunRow, now: int, late: float) -> int | None:
    """The latest tick of the run's schedule that should have been started by now; None without a schedule."""
    if run.schedule is None or "schedule" not in run.strategy:
        return None
    moment = EPOCH + timedelta(microseconds=now) - timedelta(seconds=late)
    tick = Schedule(run.schedule, run.time_zone).last_tick(moment)
    return None if tick is None else to_micros(tick)


def usual_seconds(runs: Sequence[RunRow]) -> float | None:
    """The median duration of the newest successes in seconds; None without a success."""
    successes = [run for run in runs if state(run) == SUCCESS and run.ended is not None][-SUCCESSES:]
    return median((run.ended or 0) - run.started for run in successes) / 1_000_000 if successes else None


def summary(found: Sequence[Finding]) -> tuple[int, str]:
    """The exit code of all findings together, and the line that a monitor shows."""
    if not found:
        return NO_ANSWER, "DISLOCK UNKNOWN - the journal has no run: is LOCK_JOURNAL set where the jobs are started?"
    level = max(finding.level for finding in found)
    bad = [finding for finding in found if finding.level]
    names = ", ".join(f"{finding.key} ({finding.word})" for finding in bad)
    jobs = "1 job" if len(found) == 1 else f"{len(found)} jobs"
    text = f"{len(bad)} of {jobs} not well: {names}" if bad else f"{jobs} well"
    return level, f"DISLOCK {WORDS[level]} - {text}"


def zone_of(run: RunRow) -> ZoneInfo:
    """The zone in which a run's times are shown: its schedule's, or UTC."""
    try:
        return find_zone(run.time_zone or "UTC")
    except ConfigurationError:
        return ZoneInfo("UTC")


def _missed(runs: Sequence[RunRow], due: int, zone: ZoneInfo, late: float) -> Finding:
    key = runs[-1].key
    tick = _moment(due, zone)
    until = due + round(late * 1_000_000)
    for run in reversed(runs):
        # It started before the tick was overdue, and still ran when the tick came.
        if run.started <= until and (run.ended is None or run.ended >= due) and state(run) != "died":
            if "lease" not in run.strategy:
                continue
            since = _moment(run.started, zone)
            text = f"the tick {tick} did not run: the run of {since} on {host(run.owner)} held the lease"
            return Finding(key, WARNING, "held up", text)
    return Finding(key, CRITICAL, "missed", f"nothing ran for the tick {tick}; the last run began {_last(runs, zone)}")


def _last(runs: Sequence[RunRow], zone: ZoneInfo) -> str:
    run = runs[-1]
    return f"{_moment(run.started, zone)} on {host(run.owner)} ({ended(run)})"


def _bad(run: RunRow, zone: ZoneInfo) -> str:
    tick = f" of the tick {_moment(run.tick, zone)}" if run.tick is not None else ""
    verb = "could not start at" if state(run) == NOT_STARTED else "began"
    return f"{ended(run)}: the run{tick} {verb} {_moment(run.started, zone)} on {host(run.owner)}"


def _moment(micros: int, zone: ZoneInfo) -> str:
    # With the zone, because the jobs of one list may have different ones.
    moment: datetime = (EPOCH + timedelta(microseconds=micros)).astimezone(zone)
    return f"{moment:%Y-%m-%d %H:%M}{f':{moment:%S}' if moment.second else ''} {zone.key}"
