"""The strategy advisory: one transaction-scoped advisory lock, held on one connection while the work runs.

No table, no TTL and no renewal: the lock is held as long as its transaction, and its transaction as long as its
connection. https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from dislock.errors import DatabaseUnavailableError, LockNotAcquiredError, LockWaitEndedError, Loss, LossReason
from dislock.events import INFO
from dislock.protocol.acquisition import LEAVE_SECONDS, Acquisition
from dislock.protocol.steps import Answer, Done, Execute, Failed, Failure, Steps, Wait, Watch, proven, trouble

#: Seconds between two trivial statements: proxies cut connections that are silent for longer, and a loss is noticed.
PING_PAUSE = 15.0
#: Seconds that such a statement may take.
PING_SECONDS = 10.0
#: Seconds after which the server gives up a wait, before its sender stops listening.
WAIT_MARGIN = 2.0

# Every statement is a constant but for numbers: a bound parameter would keep a snapshot for the whole transaction, and
# that would hold back the vacuum of every table of the database.


class Begin(NamedTuple):
    """Begins the transaction that holds the lock."""

    TEMPLATE: ClassVar[str] = "BEGIN ISOLATION LEVEL READ COMMITTED"


class Outlast(NamedTuple):
    """Keeps the server from ending the transaction, and has it notice a host that died within half a minute.

    The server's own keepalive takes two hours on Linux. A setting that the server does not have is left out.
    """

    TEMPLATE: ClassVar[str] = """
    SELECT count(set_config(wanted.name, wanted.value, true))
    FROM (VALUES ('tcp_keepalives_idle', '15'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
                 ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'), ('statement_timeout', '0'))
         AS wanted (name, value)
    WHERE EXISTS (SELECT FROM pg_catalog.pg_settings AS known WHERE known.name = wanted.name)"""


class Try(NamedTuple):
    """Takes the lock if it is free: one row, whether it was taken."""

    key: int
    TEMPLATE: ClassVar[str] = "SELECT pg_try_advisory_xact_lock({key})"


class SetTimeout(NamedTuple):
    """Bounds the wait for the lock, in whole milliseconds."""

    milliseconds: int
    TEMPLATE: ClassVar[str] = "SELECT set_config('lock_timeout', '{milliseconds}', true)"


class Queue(NamedTuple):
    """Waits for the lock in the server's own queue, where each is served in turn."""

    key: int
    TEMPLATE: ClassVar[str] = "SELECT pg_advisory_xact_lock({key})::text"


class Holder(NamedTuple):
    """Who has the lock, as far as this role may know: application names and process numbers, in one row."""

    high: int
    low: int
    TEMPLATE: ClassVar[str] = """
    SELECT string_agg(coalesce(nullif(session.application_name, ''), 'a session') || ' (process ' || lock.pid || ')',
                      ', ' ORDER BY lock.pid)
    FROM pg_catalog.pg_locks AS lock LEFT JOIN pg_catalog.pg_stat_activity AS session ON session.pid = lock.pid
    WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
      AND lock.classid::bigint = {high} AND lock.objid::bigint = {low}
      AND lock.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""


class Ping(NamedTuple):
    """Asks for nothing."""

    TEMPLATE: ClassVar[str] = "SELECT 1"


class Commit(NamedTuple):
    """Ends the transaction, which frees the lock."""

    TEMPLATE: ClassVar[str] = "COMMIT"


AdvisoryStatement = Begin | Outlast | Try | SetTimeout | Queue | Holder | Ping | Commit


class AdvisoryAcquisition(Acquisition):
    """One acquisition of one advisory lock: ``acquire``, ``keep``, ``release`` as for the other strategies."""

    def acquire(self) -> Steps[bool]:
        """Takes the lock, or waits for it in the server's queue. True: it is held. False: asked to leave."""
        held = False
        try:
            held = yield from self._claim()
        finally:
            self._connected = held
        if not held:
            yield from self._close()
        return held

    def _claim(self) -> Steps[bool]:
        plan = self._plan
        assert plan.advisory is not None
        key, name = plan.advisory.key, plan.advisory.name
        if (yield Wait(self._clock() + plan.delay)).leave:
            return False
        by = self._clock() + plan.connect_timeout
        answer = yield from self._insist(lambda *_: Begin(), by)
        if not isinstance(answer, Done) or answer.leave:
            return self._give_up(answer)
        for statement in (Outlast(), Try(key)):
            answer = yield Execute(statement, by)
            if not proven(answer) or answer.leave:
                return self._leave_or_fail(answer)
        taken = bool(answer.rows[0][0])
        if not taken and plan.wait:
            taken = yield from self._queue(key, name)
            if not taken:
                return False
        if not taken:
            raise LockNotAcquiredError(*(yield from self._refused(key, name, by)), key=name)
        self.held = True
        self._say("taken", INFO, f"{name} is taken (advisory lock {key})", key=name)
        return True

    def _queue(self, key: int, name: str) -> Steps[bool]:
        wait = self._plan.wait
        self._say("waiting", INFO, f"{name} is held: waiting for it up to {wait:g} s", key=name, wait_seconds=wait)
        answer = yield Execute(SetTimeout(max(1, round(wait * 1000))), self._clock() + PING_SECONDS)
        if not proven(answer) or answer.leave:
            return self._leave_or_fail(answer)
        until = self._clock() + wait
        answer = yield Execute(Queue(key), until + WAIT_MARGIN)
        if proven(answer):
            return not answer.leave
        if answer.leave or self._clock() < until - WAIT_MARGIN:
            return self._leave_or_fail(answer)
        raise LockWaitEndedError(f"waited {wait:.0f} s in vain: {name} is still held by somebody else", key=name)

    def _refused(self, key: int, name: str, by: float) -> Steps[tuple[str]]:
        high, low = (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF
        answer = yield Execute(Holder(high, low), by)
        found = answer.rows[0][0] if proven(answer) and answer.rows else None
        return (f"{name} (advisory lock {key}) is held by {found or 'somebody else'}",)

    def _leave_or_fail(self, answer: Answer) -> bool:
        """False if asked to leave; else the error: a transaction that failed cannot be gone on with."""
        if answer.leave:
            return False
        raise DatabaseUnavailableError(f"no lock: {trouble(answer)}")

    def keep(self) -> Steps[Loss | None]:
        """Watches the connection until asked to leave (None), or until it is lost (why)."""
        while True:
            answer = yield Watch(self._clock() + PING_PAUSE)
            if answer.leave:
                return None
            if isinstance(answer, Done):
                answer = yield Execute(Ping(), self._clock() + PING_SECONDS)
            if not proven(answer):
                return self._connection_lost(trouble(answer))
            if answer.leave:
                return None

    def release(self, *, started: bool = True, succeeded: bool = False) -> Steps[Loss | None]:
        """Commits, which frees the lock, and says if it turns out to have been lost before."""
        if self.held and not self.loss:
            answer = yield Execute(Commit(), self._clock() + LEAVE_SECONDS)
            if isinstance(answer, Done):
                assert self._plan.advisory is not None
                name = self._plan.advisory.name
                self._say("released", INFO, f"{name} is free again", key=name)
            else:
                self._connection_lost(trouble(answer), over=True)
        self.held = False
        yield from self._close()
        return self.loss

    def fail(self, why: str) -> None:
        """Nobody watches the connection any more, by a fault of this process."""
        self._connection_lost(why)

    def _connection_lost(self, why: str, *, over: bool = False) -> Loss:
        assert self._plan.advisory is not None
        name = self._plan.advisory.name
        # The server freed it when the connection ended: hurrying the command's end gains nothing.
        loss = Loss(LossReason.UNCONFIRMED, f"the advisory lock {name} was lost with its connection: {why}", self._plan.advisory.grace)
        self._lose(loss, over=over)
        return loss
