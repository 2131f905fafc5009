"""What an acquisition is to take, and its clocks: plain values and functions that any driver can make."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dislock.events import Event
from dislock.protocol.lease import Terms
from dislock.protocol.schedule import Schedule, Slot


class SlotPlan(NamedTuple):
    """Which slot is wanted: ``slot``, or the one that the schedule has for the start."""

    key: str
    slot: Slot | None = None
    schedule: Schedule | None = None
    tolerance: float = 5.0
    by_success: bool = False
    """The slot is not taken before the run: a run that succeeds under the lease seals it."""


class AdvisoryPlan(NamedTuple):
    """Which advisory lock is wanted: PostgreSQL's number for it, and its name for people."""

    key: int
    name: str
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL for a supervised command whose lock is lost."""


class JournalPlan(NamedTuple):
    """Where a run is recorded, and what is known about it before it starts."""

    table: tuple[str, ...]
    keep_days: int
    key: str
    strategy: str
    schedule: str | None
    command: str | None


class Plan(NamedTuple):
    """Everything that an acquisition needs to know. Durations in seconds; ``started`` by the driver's clock."""

    targets: tuple[str, ...]
    owner: str
    connect_timeout: float
    started: float
    delay: float = 0.0
    slot: SlotPlan | None = None
    lease: Terms | None = None
    advisory: AdvisoryPlan | None = None
    wait: float = 0.0
    """How long to wait for a lease or an advisory lock that somebody else holds."""
    supervised: bool = False
    """A command runs under the locks, and is stopped when the lease is lost."""
    continues: bool = False
    """The work goes on when the lease is lost (``LeaseLossPolicy.CONTINUE``)."""
    journal: JournalPlan | None = None
    """Where the run is recorded; None: nowhere."""


class Senses(NamedTuple):
    """What a protocol knows of its surroundings: clocks in seconds, random numbers in [0, 1), and a way to report."""

    clock: Callable[[], float]
    wall: Callable[[], float]
    chance: Callable[[], float]
    report: Callable[[Event], None]
