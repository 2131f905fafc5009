"""Programs that hold several leases at once, over the connections of one hub (``dislock.protocol.sharing``).

The histories are those of ``history``; every process that uses the library is one of several locks of a program, the
others of which have keys of their own. The programs contend with each other and with ordinary wrappers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from dislock.drivers.memory_table import Row
from dislock.errors import DislockError, Loss, LossReason
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.sharing import LATE, Hub
from dislock.protocol.sharing_lines import MOST_LINES, Line
from dislock.protocol.sharing_tickets import Member, Seat, Ticket
from dislock.protocol.statements import Moved, MoveExpiry, Renewed, RenewMany
from dislock.protocol.steps import Answer, Done, Failure, Steps
from tests.simulation.calls import Call
from tests.simulation.checks import Checks, Grant, WatchedTable
from tests.simulation.driver import Leave, Simulated
from tests.simulation.history import LEASE_KEY, History, Rules
from tests.simulation.process import LIBRARY, SUPERVISED, Host, Process
from tests.simulation.server import Server
from tests.simulation.stats import Stats

DELAYS = "delays nobody else"
#: The keys of the other leases of a program.
OTHERS = tuple(f"{LEASE_KEY}-{number}" for number in range(3))
#: No fault but rows that somebody has locked.
LOCKS: dict[str, Any] = {
    "strategy": "lease", "rate": 0.0, "blows": 0.0, "kinds": ("lock",), "troubles": 4, "spread": 0.02, "length": 2.0
}  # fmt: skip


class Seated(Seat):
    """The seat of a simulated lock."""

    def __init__(self, process: Lock) -> None:
        self.process = process


class Program:
    """One process of the operating system with its hub."""

    def __init__(self, history: SharedHistory, host: Host) -> None:
        self.history, self.host = history, host
        self.dead = self.paused = False
        self.deferred: list[Callable[[], None]] = []
        self.locks: list[Lock] = []
        senses = Senses(self.clock, history.true_wall, history.rng.random, lambda _: None)
        self.hub = history.make_hub(history.targets, senses, self)
        self.drivers: dict[Line, Simulated] = {}
        self.leaves: dict[Line, Leave] = {}

    # For its hub

    def start(self, line: Line) -> None:
        self.leaves[line] = Leave()
        self.soon(partial(self._begin, line))

    def _begin(self, line: Line) -> None:
        driver = self.drivers.setdefault(line, Simulated(Wire(self, line)))
        driver.run(line.serve(), self.leaves[line], lambda _, __: self.hub.stopped(line))

    def hurry(self, line: Line) -> None:
        self.soon(partial(self.drivers[line].request, self.leaves[line]))

    def call_at(self, moment: float) -> None:
        self.wake_at(moment, self.hub.tick)

    def wake_at(self, moment: float, callback: Callable[[], None]) -> None:
        due = (moment - self.host.since) / self.host.rate
        # Nobody wakes at the very moment.
        self.history.at(max(due, self.history.now) + 0.004 * self.history.rng.random(), self.deliver, callback)

    def soon(self, callback: Callable[[], None]) -> None:
        self.history.at(self.history.now, self.deliver, callback)

    # For its drivers

    def clock(self) -> float:
        return self.host.since + self.history.now * self.host.rate

    def deliver(self, callback: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.paused:
            self.deferred.append(callback)
        else:
            callback()

    def answered(self, call: Any, outcome: Any) -> None:
        if call.link.alive:
            self.history.trace("a line hears %s", outcome)
            call.done(outcome if isinstance(outcome, Failure) else (outcome, call.warned))

    # What befalls one of its locks befalls all

    def crash(self) -> None:
        self.dead = True
        for lock in self.locks:
            lock.crash()

    def resume(self) -> None:
        self.paused = False
        deferred, self.deferred = self.deferred, []
        for callback in deferred:
            self.deliver(callback)


class Wire:
    """Implements ``tests.simulation.driver.World`` for one line of a program."""

    def __init__(self, program: Program, line: Line) -> None:
        self.program, self.line, self.clock = program, line, program.clock
        self.call_at = program.wake_at

    def connect(self, target: int, answer: Any) -> None:
        if not self.program.dead:
            self.program.history.server.connect(Sender(self.program, []), target, answer)

    def execute(self, link: Any, statement: Any, answer: Any) -> None:
        program = self.program
        locks = [ticket.member.seat.process for ticket in self.line.job if isinstance(ticket.member.seat, Seated)]
        program.history.trace("%s: sends %s", locks, statement)
        for lock in locks:
            lock.struck()
        if not program.dead:
            program.history.server.execute(Sender(program, locks), link, statement, answer)

    def cancel(self, link: Any) -> None:
        self.program.history.server.cancel(Sender(self.program, []), link)

    def abandon(self, link: Any) -> None:
        link.alive = False


class Sender(NamedTuple):
    """What the server knows of whoever sent a statement."""

    program: Program
    locks: Sequence[Lock]

    @property
    def host(self) -> Host:
        return self.program.host

    def deliver(self, callback: Callable[[], None]) -> None:
        self.program.deliver(callback)

    def answered(self, call: Any, outcome: Any) -> None:
        self.program.answered(call, outcome)


class Joined:
    """Stands for a driver of a lock's own."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.members: dict[Leave, Member] = {}

    def run(self, steps: Steps[Any], leave: Leave, ended: Callable[[Any, Any], None]) -> None:
        keeps = leave is self.lock.keeping

        def finish(result: Any, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, DislockError):
                raise error
            # Whoever waits for it hears of it a moment later.
            self.lock.program.soon(partial(self.lock.deliver, partial(ended, result, error)))

        self.members[leave] = self.lock.program.hub.run(self.lock.seat, steps, finish, keeps=keeps)

    def request(self, leave: Leave) -> None:
        self.lock.program.hub.request(self.members[leave])


class Lock(Process):
    """One of the locks of a program."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self.program = program
        self.seat = Seated(self)
        program.locks.append(self)
        assert plan.lease is not None
        self.key = plan.lease.key
        super().__init__(program.history, program.host, plan, LIBRARY, None)

    def make_driver(self) -> Joined:
        return Joined(self)

    def crash(self) -> None:
        if not self.dead:
            super().crash()
            if not self.program.dead:
                self.program.crash()

    def pause(self, seconds: float, *, whole: bool) -> None:
        if self.paused or self.dead:
            return
        super().pause(seconds, whole=whole)
        if not self.program.paused:
            self.program.paused = True
            for lock in self.program.locks:
                if not lock.over:
                    lock.pause(seconds, whole=whole)
                lock.was_paused = True
            self.history.after(seconds, self.program.resume)

    def report(self, loss: Loss) -> None:
        history = self.history
        assert isinstance(history, SharedHistory)
        if history.only_locks and self.key != LEASE_KEY and loss.reason is LossReason.UNCONFIRMED:
            history.checks.fail(DELAYS, f"{self} lost its lease, and nobody had locked its row: {loss}")
        super().report(loss)


class SharedTable(WatchedTable):
    """Knows whose statement it is, and what a beat does."""

    def took(self, call: Call, row: Row, now: int) -> None:
        super().took(_of_one(call), row, now)

    def refused(self, call: Call, row: Row, now: int) -> None:
        super().refused(_of_one(call), row, now)

    def moved(self, call: Call, row: Row, now: int) -> None:
        super().moved(_of_one(call), row, now)

    def renew(self, call: Call, now: int, locked: Any) -> list[int]:
        """The numbers of those that were renewed: whose row is theirs in the snapshot, and not locked."""
        many, moved = call.statement, []
        for number, key, owner, ends, expires in zip(
            many.numbers, many.keys, many.owners, many.ends, many.expires, strict=True
        ):
            found = self.snapshot(key)
            if found is None or key in locked or found[0] is not self.rows.get(key):
                continue
            row, value, expire, _ = found
            if value == owner and expire == ends and (expire > now or ends == expires):
                lock = call.process.locks[number]
                own = Call(MoveExpiry(key, owner, many.lock_timeout, [ends], expires), lock)
                own.sent = call.sent
                self.moved(own, row, now)
                row.change(value, expires)
                moved.append(number)
        return moved


def _of_one(call: Call) -> Call:
    """The call as one of the lock whose statement it is."""
    if not isinstance(call.process, Sender):
        return call
    own = Call(call.statement, call.process.locks[0])
    own.sent = call.sent
    return own


class SharedServer(Server):
    """Carries out beats too."""

    #: Whether a beat passes over rows that somebody has locked.
    skips = True

    def _begin(self, call: Call) -> None:
        if not isinstance(call.statement, RenewMany):
            super()._begin(call)
            return
        if not self.skips and any(key in self.locked for key in call.statement.keys):
            self.history.after(0.01, self._arrive, call)
            return
        table, now = self.table, self.history.database_now()
        assert isinstance(table, SharedTable)
        before = {key: self._content(key) for key in call.statement.keys}
        moved = table.renew(call, now, self.locked)
        rows = tuple(Renewed(now, number) for number in moved)
        keys = [key for key, content in before.items() if content != self._content(key)]
        if self.replicated is None or not keys:
            self._reply(call, rows)
            return
        call.rows = rows
        for key in keys:
            self.locked.setdefault(key, deque())
            table.rows[key].before = before[key] or (None, 0, 0)
        self.syncing[call] = keys
        call.link.waiting = call


class SharedChecks(Checks):
    """The invariants, for the other leases too."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.tokens: dict[str, int] = {}

    def took(self, call: Call, row: Row, now: int) -> None:
        key, history = call.statement.key, self.history
        if key not in OTHERS:
            super().took(call, row, now)
            return
        self.slowest = max(self.slowest, history.now - call.sent)
        if row.holder is not None:
            row.holder.ended = row.expire
            self.overrun(row.holder, row, now, "when its row was taken over")
        if now <= self.tokens.get(key, 0) and not history.stepped_back and not history.forced:
            self.fail("fencing", f"{call.process} was given {now} after {self.tokens[key]}")
        self.tokens[key] = now
        row.holder = Grant(call.process, key, now, lease=True)
        row.holder.disturbed = history.stepped_at >= call.sent
        call.process.grants.append(row.holder)
        history.stats.acquisitions += 1
        history.trace("the database gives %s to %s at %d", key, call.process, now)


class SharedHistory(History):
    """A history with programs that hold several leases at once."""

    hub: type[Hub] = Hub
    server_type: type[SharedServer] = SharedServer

    def __init__(self, seed: int, rules: Rules, stats: Stats, *, verbose: bool = False) -> None:
        super().__init__(seed, rules, stats, verbose=verbose)
        self.checks = SharedChecks(self)
        assert isinstance(self.table, SharedTable)
        self.table.checks = self.checks
        self.server = self.server_type(self, self.table)
        self.programs: dict[Host, Program] = {}
        #: Nothing goes wrong but that somebody locks the row of the lease that all contend for.
        self.only_locks = rules.bias is LOCKS

    def make_hub(self, targets: tuple[str, ...], senses: Senses, program: Program) -> Hub:
        return self.hub(targets, senses, program)

    def start(self, host: Host, plan: Plan, mode: str, tick: int | None) -> None:
        if mode == SUPERVISED or plan.lease is None:
            super().start(host, plan, SUPERVISED, tick)
            return
        program = self.programs.get(host)
        if program is None or program.dead:
            program = self.programs[host] = Program(self, host)
        if not program.paused:
            Lock(program, plan)
            self.start_others(program, plan)

    def _last_lease(self) -> None:
        # A program whose connections all wait for an answer has none for a start, until the first of them gives up.
        for program in self.programs.values():
            lines = program.hub.lines
            if not program.dead and len(lines) == MOST_LINES and all(line.job for line in lines):
                gives_up = min(ticket.by for line in lines for ticket in line.job) + LATE
                self.until((gives_up - program.host.since) / program.host.rate)
        super()._last_lease()

    def start_others(self, program: Program, plan: Plan) -> None:
        """The program takes some of its other leases as well."""
        assert plan.lease is not None
        for key in OTHERS:
            if not self.steady and self.rng.random() < 0.6:
                own = plan._replace(lease=plan.lease._replace(key=key), wait=0.0)
                self.after(0.02 * self.rng.random(), program.deliver, partial(Lock, program, own))

    def ended(self, process: Process) -> None:
        if not isinstance(process, Lock) or process.key == LEASE_KEY:
            super().ended(process)


class SilenceBelieved(Hub):
    """Whoever is not in the answer to a beat counts as renewed, as the old holder that a beat shows would have it."""

    def confirm(self, tickets: Sequence[Ticket], answer: Answer, *, connected: bool) -> None:
        if isinstance(answer, Done):
            rows = [row for row in answer.rows if isinstance(row, Renewed)]
            now = rows[0].now if rows else None
            for ticket in tickets:
                move = ticket.statement
                assert isinstance(move, MoveExpiry)
                moment = move.known[-1] - 1 if now is None else now
                self.answer(ticket, Done((Moved(moment, 1, move.owner, move.expires),), doubt=answer.doubt))
        super().confirm(tickets, answer, connected=connected)


class ServerThatWaits(SharedServer):
    """A beat waits for rows that somebody has locked."""

    skips = False


class TrustingHistory(SharedHistory):
    hub = SilenceBelieved


class WaitingHistory(SharedHistory):
    server_type = ServerThatWaits


#: Histories with a broken rule, and the invariant that catches it.
BROKEN: dict[str, tuple[type[SharedHistory], str]] = {
    "silence-believed": (TrustingHistory, "every loss is reported"),
    "beats-that-wait": (WaitingHistory, DELAYS),
}


def play(seed: int, stats: Stats, kind: type[SharedHistory] = SharedHistory, *, verbose: bool = False) -> None:
    """Runs one history: every other one has no fault but locked rows."""
    bias = LOCKS if seed % 2 else {"strategy": "lease", "modes": (LIBRARY, LIBRARY, SUPERVISED)}
    kind(seed, Rules(table=SharedTable, bias=bias), stats, verbose=verbose).run()
