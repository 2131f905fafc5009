"""What a history is about: drawn from its seed before it begins."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

from dislock.protocol.schedule import Schedule, Slot
from dislock.protocol.statements import to_micros, to_moment
from tests.simulation.process import CONTINUES, LIBRARY, SUPERVISED, Host
from tests.simulation.server import CONNECT_FAULTS, EXECUTE_FAULTS

SECOND = 1_000_000
START = to_micros(datetime(2026, 3, 1, 3, 0, tzinfo=timezone.utc))
BLOWS = ("crash", "crash after", "pause", "suspend", "signal")
EPISODES = (
    *("cut", "restart", "closed target", "clock", "force", "remove", "lock", "table lock", "remove slot", "blow"),
    *("lock slot", "standby"),
)
MODES = ((SUPERVISED,), (SUPERVISED,), (SUPERVISED, LIBRARY), (SUPERVISED, CONTINUES, LIBRARY))
MINUTELY = Schedule("* * * * *", "UTC")


class Ticks:
    """A schedule with a tick at each multiple of ``gap`` microseconds."""

    zone_name = "UTC"

    def __init__(self, gap: int) -> None:
        self.gap = gap

    def slot(self, now: datetime, *, session_zone: str, tolerance: float) -> Slot:
        micros = to_micros(now)
        tick = micros - micros % self.gap
        if tick + self.gap - micros <= min(tolerance * SECOND, self.gap / 2):
            tick += self.gap
        gap = timedelta(microseconds=self.gap)
        first = to_moment(tick)
        assert first is not None
        return Slot(first, first + gap, first + 2 * gap)

    def tolerance(self, now: datetime, *, session_zone: str, tolerance: float) -> float:
        return min(tolerance, self.gap / 2 / SECOND)


class Scene:
    """Durations are seconds; ``gap``, the time between two ticks, is microseconds."""

    def draw(self, rng: Random, bias: dict[str, Any]) -> None:
        random = rng.random

        def pick(name: str, *options: Any) -> Any:
            chosen = rng.choice(options)
            return bias.get(name, chosen)

        strategy = pick(
            "strategy", "lease", "lease", "lease", "schedule", "schedule", "both", "both", "success", "success"
        )
        self.with_lease, self.with_slot = strategy != "schedule", strategy != "lease"
        self.by_success = strategy == "success"
        self.ttl = pick("ttl", 1.0, 1.0, 2.0, 3.0, 5.0, 12.0)
        self.interval = self.ttl * (0.1 + 0.9 * random())
        self.grace = pick("grace", 0.0, 0.2, 1.0, 3.0, 10.0)
        self.connect_timeout = pick("connect_timeout", 1.0, 3.0, 10.0)
        self.targets = tuple(f"db{number}" for number in range(pick("targets", 1, 1, 2, 3)))
        real = self.with_slot and random() < 0.03
        gap = 60.0 if real else pick("gap", 6.0, 10.0, 20.0)
        self.gap = round(gap * SECOND)
        self.schedule: Any = MINUTELY if real else Ticks(self.gap)
        self.asked_tolerance = pick("asked_tolerance", 1.0, 2.0, 5.0)
        self.tolerance = min(self.asked_tolerance, gap / 2)
        self.given_slots = self.with_slot and random() < 0.2
        self.clocks_agree = random() < 0.95
        spread = self.tolerance * pick("spread", 0.9, 0.9, 0.02) if self.clocks_agree else gap
        self.hosts = [
            Host(spread * (2 * random() - 1), 2e-4 * (2 * random() - 1), 1000 * random())
            for _ in range(pick("hosts", 1, 2, 2, 3, 4))
        ]
        self.modes = pick("modes", *MODES)
        self.namesakes = pick("namesakes", True, True, False, False, False)
        self.latency = pick("latency", 0.0005, 0.002, 0.02)
        self.rate = pick("rate", 0.0, 0.05, 0.2, 0.4)
        self.connect_faults = rng.sample(CONNECT_FAULTS, pick("connect_kinds", 1, 2, 4))
        faults = rng.sample(EXECUTE_FAULTS, pick("execute_kinds", 1, 2, 7))
        self.execute_faults = bias.get("execute_faults", faults)
        self.blows = pick("blows", 0.0, 0.1, 0.4)
        self.unstartable = pick("unstartable", 0.0, 0.0, 0.4)
        #: What everything that takes time is measured by.
        self.scale = self.ttl if self.with_lease else gap / 2
        self.length = self.scale * pick("length", 0.1, 0.5, 1.0, 2.0)
        #: How long processes wait for the lease, at most.
        self.wait = pick("wait", 0.0, 0.0, self.ttl, 3 * self.ttl) if self.with_lease else 0.0
        #: How often a command fails.
        self.failing = pick("failing", 0.0, 0.2, 0.6)
        #: When faults stop.
        self.quiet = gap * pick("ticks", 1.2, 2.3) if self.with_slot else self.ttl * pick("ttls", 2.0, 4.0)
        #: When the last effect of a fault is over.
        self.calm = self.quiet
        self.troubles = pick("troubles", 0, 0, 1, 2, 4)
        self.kinds = bias.get("kinds", EPISODES)
