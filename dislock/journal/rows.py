"""What one row of the journal means: the state of a run, how long it took, and on which host it ran."""

from __future__ import annotations

import signal
from datetime import datetime, tzinfo

from dislock.errors import LEASE_LOST_EXIT_CODE
from dislock.protocol.questions import RunRow
from dislock.protocol.statements import to_moment

SUCCESS = "success"
FAILURE = "failure"
LOST = "lost"
NOT_STARTED = "not started"
#: States that are not stored: the row has no end.
RUNNING = "running"
DIED = "died"
UNKNOWN = "unknown"
#: States of a run that did not do its work.
BAD = (FAILURE, LOST, NOT_STARTED, DIED)


def state(run: RunRow) -> str:
    """The state of a run: its outcome, or, if no end was recorded, what its lease says."""
    if run.ended is not None:
        return run.outcome or UNKNOWN
    if "lease" not in run.strategy:
        # A slot does not say whether the run goes on.
        return UNKNOWN
    if run.live:
        return RUNNING
    # The lease was freed in order: only the record of the end is missing.
    return UNKNOWN if run.freed else DIED


def ended(run: RunRow) -> str:
    """How a run ended, for people: its state, and what the exit code adds to it."""
    text, code = state(run), run.exit_code
    if text == FAILURE and code is not None:
        return f"signal {signal_name(code - 128)}" if code > 128 else f"exit {code}"
    if text == NOT_STARTED:
        return {127: "not found", 126: "not executable"}.get(code or 0, text)
    # With the policy CONTINUE the exit code is the command's own.
    return f"{text}, exit {code}" if text == LOST and code not in (None, LEASE_LOST_EXIT_CODE) else text


def signal_name(number: int) -> str:
    """A signal's short name, such as KILL."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def host(owner: str) -> str:
    """The host's part of an owner string."""
    name, colon, process = owner.rpartition(":")
    return name if colon and process.isdigit() else owner


def took(run: RunRow, now: int) -> float | None:
    """Seconds that the run took, or has been running; None if neither is known."""
    if run.ended is not None:
        return max(0.0, (run.ended - run.started) / 1_000_000)
    return max(0.0, (now - run.started) / 1_000_000) if state(run) == RUNNING else None


def duration(seconds: float) -> str:
    """A duration for people; below a hundred days it has at most seven characters."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    whole = round(seconds)
    for size, large, small in ((3600, "m", "s"), (86400, "h", "m"), (10**12, "d", "h")):
        if whole < size:
            unit = {"m": 60, "h": 3600, "d": 86400}[large]
            rest = whole % unit // {"s": 1, "m": 60, "h": 3600}[small]
            return f"{whole // unit}{large} {rest:02}{small}"
    return "forever"


def clock(micros: int, zone: tzinfo, day: datetime | None = None) -> str:
    """A moment for people: month, day and time in a zone; only the time if it is on the same ``day``."""
    moment = to_moment(micros)
    if moment is None:
        return "never"
    local = moment.astimezone(zone)
    if day is not None and local.date() == day.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%m-%d %H:%M:%S}"


def local(micros: int, zone: tzinfo) -> datetime | None:
    """The moment in that zone; None for one that never comes."""
    moment = to_moment(micros)
    return None if moment is None else moment.astimezone(zone)
