"""One history: everything in it follows from its seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dislock.drivers.memory_table import Row
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.lease import Lease, Terms
from dislock.protocol.plan import Plan, SlotPlan
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import NEVER, to_micros, to_moment
from tests.simulation.checks import Checks, WatchedTable
from tests.simulation.process import PATIENCE, SUPERVISED, Host, Process
from tests.simulation.scene import BLOWS, SECOND, START, Scene
from tests.simulation.server import Server
from tests.simulation.stats import Stats

#: More events than this mean that something turns in a circle.
MOST_EVENTS = 200_000
LEASE_KEY, SLOT_KEY = "cronjob-lock:lease:job", "cronjob-lock:schedule:job"


@dataclass
class Rules:
    """What is tried: the project's own rules, or a double with one of them broken."""

    protocol: type[Acquisition] = Acquisition
    table: type[WatchedTable] = WatchedTable
    lease: type[Lease] = Lease
    #: What the scenes lean towards: a fault that needs three accidents in a row would take long to find.
    bias: dict[str, Any] = field(default_factory=dict)


class History(Scene):
    """A database, hosts, processes, and what goes wrong. ``run`` raises ``Violation``."""

    lease_key, slot_key = LEASE_KEY, SLOT_KEY
    micros = staticmethod(to_micros)

    def __init__(self, seed: int, rules: Rules, stats: Stats, *, verbose: bool = False) -> None:
        # Neighbouring seeds must not begin alike.
        rng = self.rng = Random(seed * 2_654_435_761 + 1)
        self.rules, self.stats, self.verbose = rules, stats, verbose
        self.now = 0.0
        self.steps = self.serial = 0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.processes: list[Process] = []
        self.step = 0
        #: No fault has an effect any more.
        self.steady = False
        self.stepped_at = -1.0
        self.stepped = self.stepped_back = self.forced = self.slot_forced = False
        self.checks = Checks(self)
        self.table = rules.table()
        self.table.checks = self.checks
        self.server = Server(self, self.table)

        self.draw(rng, rules.bias)
        for _ in range(self.troubles):
            self.at(self.quiet * rng.random(), self.episode, rng.choice(self.kinds))

    # Time

    def at(self, moment: float, action: Callable[..., None], *given: Any) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (moment, self.serial, action, given))

    def after(self, seconds: float, action: Callable[..., None], *given: Any) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (self.now + seconds, self.serial, action, given))

    def until(self, moment: float) -> None:
        heap, pop = self.heap, heapq.heappop
        events = 0
        while heap and heap[0][0] <= moment:
            self.now, _, action, given = pop(heap)
            action(*given)
            events += 1
            if events > MOST_EVENTS:
                raise AssertionError("the simulation does not come to an end")
        self.stats.events += events
        self.now = max(self.now, moment)

    def database_now(self) -> int:
        return START + self.step + int(self.now * SECOND)

    def true_wall(self) -> float:
        return START / SECOND + self.now

    def calm_from(self, moment: float) -> None:
        """A fault has effects until then."""
        if moment > self.calm:
            self.calm = moment

    def trace(self, text: str, *given: Any) -> None:
        if self.verbose:
            print(f"{self.now:10.6f}  {text % given}")

    # Chance

    def strike(self) -> tuple[int, str]:
        """At which of its steps something befalls a process, and what; 0: at none."""
        if self.rng.random() < self.blows:
            return self.rng.randrange(1, 16), self.rng.choice(BLOWS)
        return 0, ""

    def duration(self) -> float:
        """How long a command runs."""
        return float(min(self.length * self.rng.expovariate(1.0), 3 * self.scale))

    # What happens

    def run(self) -> None:
        if self.with_slot:
            self._ticks()
        else:
            for _ in range(self.rng.choice((2, 3, 4))):
                self.at(self.ttl * self.rng.random(), self.contend)
        self.until(self.quiet)
        while self.now < self.calm:
            self.until(self.calm)
        if self.with_slot:
            self._last_tick()
        else:
            self._last_lease()
        self.until(self.now + 1e6)
        self.stats.histories += 1
        self.stats.steps += self.steps
        if self.table.rows.get(LEASE_KEY) and not all(process.over for process in self.processes):
            raise AssertionError("a process did not end")

    def _ticks(self) -> None:
        for number in range(round(self.quiet * SECOND) // self.gap + 1):
            self.launch_tick(START + number * self.gap)

    def launch_tick(self, tick: int) -> None:
        """cron starts the job on each host when its own clock says so."""
        for host in self.hosts:
            moment = (tick - START) / SECOND - host.offset + 0.05 * self.rng.random()
            if moment >= self.now:
                self.at(moment, self.launch, host, tick)

    def _last_tick(self) -> None:
        ahead = self.now + self.tolerance + 1.0
        tick = START + (int(ahead * SECOND) // self.gap + 1) * self.gap
        self.launch_tick(tick)
        self.until((tick + self.gap - START) / SECOND)
        if self.with_lease or self.stepped or self.forced or not self.clocks_agree or self.given_slots:
            return
        if tick + self.gap not in self.checks.slots and not self.unstartable:
            self.checks.fail("somebody gets the lock", f"nobody started in the slot of {tick}, long after all faults")

    def _last_lease(self) -> None:
        since = self.now
        # A holder takes the database's clock to be ahead by what its last request took: never a row that ends too
        # early, at the price of one that ends that much later.
        deadline = since + self.ttl * 1.01 + 0.5 + self.checks.slowest
        while self.now < deadline and self.checks.lease_held_at < since:
            self.contend()
            self.until(self.now + self.ttl / 3)
        if not self.stepped and not self.forced:
            self.checks.somebody_holds(since)
            self._herd()

    def _herd(self) -> None:
        """Long after all faults all who wait are served, one after the other."""
        self.steady = True
        for _ in range(self.rng.choice((2, 3, 5))):
            self.launch(self.rng.choice(self.hosts), None, PATIENCE)

    def contend(self) -> None:
        self.launch(self.rng.choice(self.hosts), None)

    def launch(self, host: Host, tick: int | None, wait: float | None = None) -> None:
        rng = self.rng
        mode = rng.choice(self.modes)
        slot = None
        delay = 0.0
        if self.with_slot:
            given = None
            if self.given_slots and tick is not None:
                end = to_moment(tick + self.gap)
                assert end is not None
                given = Slot(None, end)
            slot = SlotPlan(SLOT_KEY, given, self.schedule, self.asked_tolerance, self.by_success)
            if rng.random() < 0.3:
                delay = (self.gap / SECOND - self.tolerance) * rng.random()
        terms = None
        if self.with_lease:
            grace = self.grace if mode == SUPERVISED else None
            terms = Terms(LEASE_KEY, "", self.ttl, self.interval, grace)
        owner = "app:1" if self.namesakes else f"host:{len(self.processes)}"
        if terms:
            terms = Terms(LEASE_KEY, owner, self.ttl, self.interval, grace)
        started = host.since + self.now * host.rate
        if wait is None:
            wait = self.wait * rng.random()
        plan = Plan(self.targets, owner, self.connect_timeout, started, delay, slot, terms, wait=wait)
        self.start(host, plan, mode, tick)

    def start(self, host: Host, plan: Plan, mode: str, tick: int | None) -> None:
        Process(self, host, plan, mode, tick)

    def ended(self, process: Process) -> None:
        if self.now >= self.quiet:
            return
        if not self.with_slot:
            self.after(self.ttl * (0.15 + self.rng.random()), self.contend)
        elif self.by_success and process.tick is not None and process.started_work and process.code != "run":
            # A pod is retried, or a second line of a crontab fires.
            self.after(self.ttl * self.rng.random(), self.launch, process.host, process.tick)

    def episode(self, kind: str) -> None:
        """Something goes wrong for a while."""
        rng = self.rng
        seconds = (0.1 + 2 * rng.random()) * self.scale
        self.trace("episode: %s, %.3f s", kind, seconds)
        if kind == "blow":
            living = [process for process in self.processes if not process.over]
            if living:
                rng.choice(living).befall(rng.choice(BLOWS))
            return
        self.stats.fault("episode: " + kind)
        if kind == "cut":
            rng.choice(self.hosts).cut_until = self.now + seconds
            self.calm_from(self.now + seconds)
        elif kind == "restart":
            self.server.restart(seconds / 4)
            self.calm_from(self.now + seconds)
        elif kind == "closed target":
            self.server.closed[rng.randrange(len(self.targets))] = self.now + seconds
        elif kind == "clock":
            self.set_clock(round(seconds * SECOND) * rng.choice((1, -1)))
        elif kind == "force":
            self.force(LEASE_KEY)
        elif kind == "remove":
            self.remove(LEASE_KEY)
        elif kind == "remove slot":
            self.remove(SLOT_KEY)
        elif kind == "table lock":
            self.server.lock_table(seconds)
            self.calm_from(self.now + seconds)
        elif kind == "standby":
            self.server.lose_standby(seconds, failover=rng.random() < 0.7)
            self.calm_from(self.now + seconds)
        else:
            key = LEASE_KEY if self.with_lease and kind == "lock" else SLOT_KEY
            self.server.lock(key, seconds / 2, rng.choice((None, None, self.force, self.remove)))
            self.calm_from(self.now + seconds / 2)

    def set_clock(self, micros: int) -> None:
        self.step += micros
        self.stepped, self.stepped_at = True, self.now
        self.stepped_back = self.stepped_back or micros < 0
        for process in self.processes:
            for grant in process.grants:
                grant.disturbed = True

    def force(self, key: str) -> None:
        """An operator takes the row; not while another transaction has it locked."""
        row = self.table.rows.get(key)
        if row is not None and key not in self.server.locked and self.server.table_lock is None:
            self._disturb(row, key)
            row.holder = None
            late = round(self.scale * self.rng.random() * SECOND)
            row.change("operator", NEVER if self.rng.random() < 0.05 else self.database_now() + late)

    def remove(self, key: str) -> None:
        row = self.table.rows.get(key)
        if row is not None and key not in self.server.locked and self.server.table_lock is None:
            del self.table.rows[key]
            self._disturb(row, key)

    def _disturb(self, row: Row, key: str) -> None:
        self.forced = True
        self.slot_forced = self.slot_forced or key == SLOT_KEY
        if row.holder is not None:
            row.holder.disturbed = True
