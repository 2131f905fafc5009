"""A server in this process, for tests of code that uses locks: tables, advisory locks, and a movable clock."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import NamedTuple, Protocol
from weakref import WeakSet

from dislock.context import LockContext
from dislock.drivers.clock import clock
from dislock.drivers.memory_table import Call, Row, Rows, Table
from dislock.protocol.advisory_statements import (
    AdvisoryStatement,
    Commit,
    Holder,
    Outlast,
    Queue,
    SetTimeout,
    Try,
)
from dislock.protocol.statements import ClaimLease, rows_of
from dislock.protocol.steps import Execute

#: One microsecond in seconds; the server counts in whole microseconds, as PostgreSQL does.
MICRO = 1e-6
#: Seconds that ``settle`` waits for the threads that renew.
SETTLE = 1.0


class Driver(Protocol):
    """What the server wakes after its clock was moved or a lock got another holder."""

    session: Session | None

    def wake(self) -> None:
        """Makes it look at the clock and at its session again. May be called from any thread."""

    def settled(self) -> bool:
        """Whether its renewals have seen what has changed, as far as one can wait for that."""


class Session:
    """One connection."""

    def __init__(self, context: LockContext, name: str) -> None:
        self.table = tuple(context.table_parts)
        self.lock_key, self.owner, self.name = context.lock_key, context.owner, name
        #: The last lease that it took, and whether somebody has changed it.
        self.lease: str | None = None
        self.disturbed = False
        #: The server has ended it.
        self.broken = False
        #: Seconds that it waits for an advisory lock.
        self.patience = 0.0


class Locked(NamedTuple):
    """A row of one of the tables, or an advisory lock, for which ``key`` is the lock key and ``expires`` None."""

    key: str
    owner: str
    expires: int | None


class MemoryServer:
    """Carries out statements at once. May be used from any thread."""

    def __init__(self, starts: float | None = None) -> None:
        """``starts``: what its clock shows first, in seconds since 1970; None: the time of this machine."""
        # Re-entrant, because a signal handler may use a lock while its thread holds this one.
        self._guard = threading.RLock()
        self._tables: dict[tuple[str, ...], Table] = {}
        #: For each advisory lock, its holder and then those who wait for it.
        self._queues: dict[int, deque[Session]] = {}
        self._drivers: WeakSet[Driver] = WeakSet()
        self._ahead = 0.0
        self._epoch = (time.time() if starts is None else starts) - clock()
        self._last = 0

    # Time

    def clock(self) -> float:
        """Seconds, as ``drivers.clock``, plus the time by which the clock was moved."""
        return clock() + self._ahead

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._epoch + self.clock()

    def advance(self, seconds: float) -> None:
        """Moves the clock and wakes all drivers."""
        with self._guard:
            self._ahead += seconds
        self.wake()

    def _now(self) -> int:
        # Each statement has its own moment, and there is room for the end that the previous release wrote.
        self._last = max(round(self.wall() / MICRO), self._last + 2)
        return self._last

    # Drivers

    def register(self, driver: Driver) -> None:
        """Makes the server wake this driver when something changes, as long as the driver exists."""
        with self._guard:
            self._drivers.add(driver)

    def wake(self) -> None:
        """Wakes all drivers. Never called while the guard is held, because a driver takes the guard."""
        with self._guard:
            drivers = list(self._drivers)
        for driver in drivers:
            driver.wake()

    def settle(self) -> None:
        """Waits until the threads that renew have seen what has changed, for at most ``SETTLE`` seconds."""
        with self._guard:
            drivers = list(self._drivers)
        end = clock() + SETTLE
        while clock() < end and not all(driver.settled() for driver in drivers):
            time.sleep(0.001)

    # Statements

    def execute(self, session: Session, step: Execute) -> tuple[object, ...]:
        """The rows of a statement, as the named tuples that answer it. No journal is kept."""
        if step.journal:
            return ()
        statement = step.statement
        with self._guard:
            if isinstance(statement, AdvisoryStatement):
                return self._advise(session, statement)
            call, now = Call(statement), self._now()
            table = self._tables.setdefault(session.table, Table())
            rows = table.begin(call, now)
            while rows is None:
                rows = table.finish(call, now)
            if isinstance(statement, ClaimLease) and rows:
                session.lease, session.disturbed = statement.key, False
            return rows_of(statement, rows)

    def _advise(self, session: Session, statement: AdvisoryStatement) -> Rows:
        if isinstance(statement, Try):
            queue = self._queues.setdefault(statement.key, deque())
            if not queue:
                queue.append(session)
            return ((queue[0] is session,),)
        if isinstance(statement, Holder):
            queue = self._queues.get(_signed(statement.high, statement.low), deque())
            return ((f"{queue[0].name} (process {os.getpid()})" if queue else None,),)
        if isinstance(statement, Outlast):
            return ((False, 0),)
        if isinstance(statement, SetTimeout):
            session.patience = statement.milliseconds / 1000
        elif isinstance(statement, Commit):
            self._leave_queues(session)
        return ()

    def queue(self, session: Session, statement: Queue) -> None:
        """Queues the session for an advisory lock; ``holds`` says when it has the lock."""
        with self._guard:
            self._queues.setdefault(statement.key, deque()).append(session)

    def holds(self, session: Session, key: int) -> bool:
        """Whether the advisory lock is this session's."""
        with self._guard:
            queue = self._queues.get(key)
            return bool(queue) and queue[0] is session  # type: ignore[index] # it is one where it is not empty

    def end(self, session: Session) -> None:
        """Ends a session, or its wait in a queue: it holds no advisory lock any more."""
        with self._guard:
            self._leave_queues(session)
        self.wake()

    def _leave_queues(self, session: Session) -> None:
        for key, queue in list(self._queues.items()):
            if session in queue:
                queue.remove(session)
            if not queue:
                del self._queues[key]

    # For the test

    def locked(self) -> list[Locked]:
        """The rows that have not expired, and the advisory locks."""
        with self._guard:
            now = self._now()
            rows = [
                Locked(key, row.value, row.expire)
                for table in self._tables.values()
                for key, row in table.rows.items()
                if row.expire > now
            ]
            return rows + [Locked(queue[0].lock_key, queue[0].owner, None) for queue in self._queues.values()]

    def seize(self, key: str, owner: str, seconds: float) -> bool:
        """Gives the row of that key to ``owner`` in every table where somebody holds it. Whether there was one."""
        found = False
        with self._guard:
            now = self._now()
            for table in self._tables.values():
                row = table.rows.get(key)
                if row is not None and row.expire > now:
                    # Another row, so that a statement that looks for the old one finds none.
                    table.rows[key] = Row(owner, now + round(seconds / MICRO))
                    found = True
            for driver in self._drivers:
                if driver.session and driver.session.lease == key:
                    driver.session.disturbed = True
        self.wake()
        return found

    def cut(self, key: int) -> bool:
        """Ends the session that holds an advisory lock. Whether there was one."""
        with self._guard:
            queue = self._queues.get(key)
            if not queue:
                return False
            queue[0].broken = True
            self._leave_queues(queue[0])
        self.wake()
        return True


def _signed(high: int, low: int) -> int:
    """The key of an advisory lock from its two halves."""
    key = (high << 32) | low
    return key - (1 << 64) if key >= 1 << 63 else key
