"""The simulated network and server: messages that are late or lost, connections that break, locks of other people."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from dislock.drivers.memory_table import Row, Table
from dislock.protocol.statements import ClaimLease, ClaimSlot, FreeAndSeal, ReadClock
from dislock.protocol.steps import Failure
from tests.simulation.calls import Call

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.process import Process

REFUSED = Failure("connection refused")
DENIED = Failure("no such database", permanent=True)
BROKEN = Failure("server closed the connection unexpectedly", broken=True)
ERROR = Failure("out of memory")
LOCKED = Failure("canceling statement due to lock timeout")
RECALLED = Failure("canceling statement due to user request")

CONNECT_FAULTS = ("refuse", "hang", "slow", "late")
EXECUTE_FAULTS = ("cut before", "cut after", "hang before", "hang after", "executed late", "answered late", "error")


class Link:
    """One connection; it dies with the server that it was made to."""

    __slots__ = ("alive", "epoch", "waiting")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.alive = True
        #: Its statement that waits for a lock.
        self.waiting: Call | None = None


class Server:
    """One database and all that lies between it and the processes."""

    def __init__(self, history: History, table: Table) -> None:
        self.history = history
        self.table = table
        self.epoch = 0
        self.down_until = -1.0
        #: Targets that do not lead anywhere for now.
        self.closed: dict[int, float] = {}
        #: Rows locked by transactions that are not ours, and the statements that wait for them.
        self.locked: dict[str, deque[Call]] = {}
        #: The statements that wait for the lock on the whole table, if somebody has it.
        self.table_lock: list[Call] | None = None
        #: What the standby has, while it is gone: a failover leads back to it.
        self.replicated: dict[str, tuple[Row, str, int, Any]] | None = None
        self.replicated_token = 0
        #: The statements that wait for the standby, and the rows that they keep locked.
        self.syncing: dict[Call, list[str]] = {}

    def connect(self, process: Process, target: int, answer: Any) -> None:
        history = self.history
        now, random = history.now, history.rng.random
        delay = history.latency * (0.5 + random())
        fate = "ok"
        if now < history.quiet:
            if process.host.cut_until > now:
                fate = "hang"
            elif self.closed.get(target, 0.0) > now:
                fate = "refuse" if target % 2 else "hang"
            elif random() < history.rate:
                fate = history.rng.choice(history.connect_faults)
                history.stats.fault("connect: " + fate)
        if fate == "hang":
            return
        if fate in ("slow", "late"):
            delay += (random() if fate == "slow" else 1 + 10 * random()) * history.scale * 0.5
        history.after(delay, self._accept, process, fate, answer)

    def _accept(self, process: Process, fate: str, answer: Any) -> None:
        if fate == "refuse" or self.history.now < self.down_until:
            process.deliver(partial(answer, REFUSED))
        else:
            process.deliver(partial(answer, Link(self.epoch)))

    def execute(self, process: Process, link: Link, statement: Any, answer: Any) -> None:
        history = self.history
        now, random = history.now, history.rng.random
        call = Call(statement, process)
        call.link, call.done, call.fate, call.sent = link, answer, "ok", now
        delay = history.latency * (0.5 + random())
        if now < history.quiet:
            if process.host.cut_until > now:
                # The network keeps what was sent, and may deliver it when it is whole again.
                if random() < 0.5:
                    return
                call.fate = "hang after"
                delay += process.host.cut_until - now
                history.calm_from(now + delay)
            elif random() < history.rate:
                fate = call.fate = history.rng.choice(history.execute_faults)
                history.stats.fault("execute: " + fate)
                if fate == "hang before":
                    return
                if fate == "cut before":
                    history.after(delay, self._answer, call, BROKEN)
                    return
                if fate == "error":
                    history.after(2 * delay, self._answer, call, ERROR)
                    return
                if fate == "executed late":
                    delay += (0.1 + 3 * random()) * history.scale
                    history.calm_from(now + delay)
        history.after(delay, self._arrive, call)

    def _arrive(self, call: Call) -> None:
        history = self.history
        if call.link.epoch != self.epoch or history.now < self.down_until:
            self._reply(call, BROKEN)
            return
        if self.table_lock is not None and not isinstance(call.statement, ReadClock):
            # No statement can set its own lock_timeout before it has this one.
            self.table_lock.append(call)
            call.link.waiting = call
            return
        self._begin(call)

    def _begin(self, call: Call) -> None:
        rows = self.table.begin(call, self.history.database_now())
        if rows is None:
            self._lock(call, self.history.database_now())
        else:
            self._reply(call, rows)

    def _lock(self, call: Call, now: int) -> bool:
        """Goes on as soon as the row that it wants is free; whether it keeps a row locked beyond this moment."""
        waiting = self.locked.get(call.wants)
        if waiting is not None:
            waiting.append(call)
            self._limit(call)
            return False
        return self._go_on(call, now)

    def _go_on(self, call: Call, now: int) -> bool:
        """Has the lock of the row that it wants; whether it keeps that one."""
        key = call.wants
        before = {key: self._content(key) for key in _keys(call.statement)}
        rows = self.table.finish(call, now)
        if rows is None:
            # It keeps the first row locked while it wants the second.
            self.locked[key] = deque()
            if call.wants in self.locked:
                self._lock(call, now)
                return True
            return self._go_on(call, now)
        if self.replicated is None or not self._wrote(call, before):
            self._reply(call, rows)
            if call.moves:
                self._free(call.statement.key)
            return False
        call.rows = rows
        for each, content in before.items():
            self.locked.setdefault(each, deque())
            if each in self.table.rows and content != self._content(each):
                self.table.rows[each].before = content or (None, 0, 0)
        self.syncing[call] = list(before)
        call.link.waiting = call
        return True

    def _content(self, key: str) -> tuple[str, int, int] | None:
        row = self.table.rows.get(key)
        return (row.value, row.expire, row.version) if row else None

    def _wrote(self, call: Call, before: dict[str, Any]) -> bool:
        """Whether it has to be replicated: a claim locks the row that refuses it, and that is written too."""
        claims = isinstance(call.statement, (ClaimSlot, ClaimLease))
        return claims or any(content != self._content(key) for key, content in before.items())

    def _acknowledge(self, call: Call, *, warned: bool) -> None:
        """The wait for the standby is over: what was changed is seen, and its rows are free."""
        keys = self.syncing.pop(call)
        for key in keys:
            if key in self.table.rows:
                self.table.rows[key].before = None
        call.warned = warned
        self._reply(call, call.rows)
        for key in keys:
            self._free(key)

    def _free(self, key: str) -> None:
        """Those that wait for the row go on, one after the other: each waits for the commit of the one before it."""
        waiting = self.locked.pop(key, deque())
        turn = 0
        while waiting:
            call = waiting.popleft()
            call.waits += 1
            if self._go_on(call, self.history.database_now() + turn):
                self.locked.setdefault(key, deque()).extend(waiting)
                if waiting:
                    self._limit(waiting[0])
                return
            turn += 1

    def cancel(self, process: Process, link: Link) -> None:
        """A request on a connection of its own, which can be lost as any other."""
        history = self.history
        if process.host.cut_until <= history.now and history.rng.random() >= history.rate:
            history.after(history.latency * (1 + history.rng.random()), self._cancel, link)

    def _cancel(self, link: Link) -> None:
        call = link.waiting
        if call is None or link.epoch != self.epoch:
            return
        if call in self.syncing:
            self.history.stats.fault("cancelled while it waited for the standby")
            self._acknowledge(call, warned=True)
        elif self.table_lock is not None and call in self.table_lock:
            self.table_lock.remove(call)
            self.history.stats.fault("cancelled")
            self._reply(call, RECALLED)
        else:
            self._stop_waiting(call, call.waits, RECALLED)

    def _limit(self, call: Call) -> None:
        call.link.waiting = call
        call.waits += 1
        limit = int(call.statement.lock_timeout[:-2]) / 1000
        self.history.calm_from(self.history.now + limit)
        self.history.after(limit, self._stop_waiting, call, call.waits, LOCKED)

    def _stop_waiting(self, call: Call, waits: int, why: Failure) -> None:
        waiting = self.locked.get(call.wants)
        if waiting is None or call.waits != waits or call not in waiting:
            return
        first = waiting[0] is call
        waiting.remove(call)
        self.history.stats.fault("lock timeout" if why is LOCKED else "cancelled")
        self._reply(call, why)
        if first and waiting:
            # The first in the queue waits for the transaction, the others for their turn: each wait has its own limit.
            self._limit(waiting[0])
        if call.moves:
            self._free(call.statement.key)

    def _reply(self, call: Call, outcome: Any) -> None:
        history = self.history
        fate = call.fate
        if fate == "hang after" or call.process.host.cut_until > history.now:
            return
        delay = history.latency * (0.5 + history.rng.random())
        if fate == "cut after":
            outcome = BROKEN
        elif fate == "answered late":
            delay += 2 * history.rng.random() * history.scale
            history.calm_from(history.now + delay)
        history.after(delay, self._answer, call, outcome)

    def _answer(self, call: Call, outcome: Any) -> None:
        call.process.deliver(partial(call.process.answered, call, outcome))

    # What others do

    def restart(self, seconds: float) -> None:
        """All connections break, all transactions are undone, and for a while nobody answers."""
        self.epoch += 1
        self.down_until = self.history.now + seconds
        for waiting in (*self.locked.values(), self.table_lock or (), self.syncing):
            for call in waiting:
                call.waits += 1
                self._reply(call, BROKEN)
        self.locked.clear()
        # What waited for the standby was committed all the same.
        self.syncing.clear()
        for row in self.table.rows.values():
            row.before = None
        self.table_lock = None

    def lose_standby(self, seconds: float, *, failover: bool) -> None:
        """For a while whatever is changed is not replicated; then the standby is back, or takes over without it."""
        if self.replicated is None:
            # What waits for a row lock was not changed yet.
            self.replicated = {key: (row, row.value, row.expire, row.holder) for key, row in self.table.rows.items()}
            self.replicated_token = self.history.checks.last_token
            self.history.after(seconds, self._fail_over if failover else self._find_standby)

    def _find_standby(self) -> None:
        self.replicated = None
        for call in list(self.syncing):
            self._acknowledge(call, warned=False)

    def _fail_over(self) -> None:
        replicated, self.replicated = self.replicated, None
        assert replicated is not None
        self.restart(0.3 * self.history.scale * self.history.rng.random())
        self.history.calm_from(self.down_until)
        self.history.trace("a standby takes over")
        undone = {key: row.holder for key, row in self.table.rows.items()}
        # A token that was undone was told to nobody.
        self.history.checks.last_token = self.replicated_token
        self.table.rows = {}
        for key, (row, value, expire, holder) in replicated.items():
            if (row.value, row.expire) != (value, expire):
                row.change(value, expire)
            row.holder = holder
            self.table.rows[key] = row
        for key, holder in undone.items():
            now = self.table.rows.get(key)
            if holder is not None and (now is None or now.holder is not holder):
                self.history.checks.undone(key, holder)

    def lock(self, key: str, seconds: float, then: Any) -> None:
        """Somebody's transaction locks a row for a while, then commits ``then``, or nothing."""
        if key not in self.locked and self.table_lock is None:
            self.locked[key] = deque()
            self.history.after(seconds, self._unlock, key, then, self.epoch)

    def lock_table(self, seconds: float) -> None:
        """Somebody locks the whole table for a while; not while a row of it is locked."""
        if self.table_lock is None and not self.locked:
            self.table_lock = []
            self.history.after(seconds, self._unlock_table, self.epoch)

    def _unlock_table(self, epoch: int) -> None:
        if epoch == self.epoch and self.table_lock is not None:
            waiting, self.table_lock = self.table_lock, None
            for call in waiting:
                self._begin(call)

    def _unlock(self, key: str, then: Any, epoch: int) -> None:
        if epoch != self.epoch:
            return
        waiting = self.locked.pop(key)
        if then is not None:
            then(key)
        self.locked[key] = waiting
        self._free(key)


def _keys(statement: Any) -> list[str]:
    return [statement.key, statement.slot_key] if isinstance(statement, FreeAndSeal) else [statement.key]
