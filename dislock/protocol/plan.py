"""What an acquisition is told, and what it perceives: plain values and functions, so that any driver can make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dislock.protocol.lease import Terms
from dislock.protocol.schedule import Schedule, Slot


class SlotPlan(NamedTuple):
    """Which slot is wanted: the one given, or the one that the schedule has for the start."""

    key: str
    slot: Slot | None = None
    schedule: Schedule | None = None
    tolerance: float = 5.0


class Plan(NamedTuple):
    """All that an acquisition needs to know; durations in seconds, ``started`` by the driver's clock."""

    targets: tuple[str, ...]
    owner: str
    connect_timeout: float
    started: float
    delay: float = 0.0
    slot: SlotPlan | None = None
    lease: Terms | None = None


class Senses(NamedTuple):
    """What a protocol perceives of its surroundings: clocks in seconds, chance in [0, 1), and a way to speak."""

    clock: Callable[[], float]
    wall: Callable[[], float]
    chance: Callable[[], float]
    say: Callable[[int, str], None]
