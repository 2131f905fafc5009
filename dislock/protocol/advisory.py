"""The strategy advisory: one transaction-scoped advisory lock, held on one connection while the work runs.

It has no table, no TTL and no renewal: the lock lasts as long as its transaction, and the transaction as long as its
connection. https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
"""

from __future__ import annotations

from dislock.errors import (
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    LockWaitEndedError,
    Loss,
    LossReason,
)
from dislock.events import INFO
from dislock.protocol.acquisition import LEAVE_SECONDS, Acquisition
from dislock.protocol.advisory_statements import Begin, Commit, Holder, Outlast, Ping, Queue, SetTimeout, Try
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.steps import Answer, Done, Execute, Failed, Steps, Wait, Watch, proven, trouble

#: Seconds between two trivial statements: they notice a loss, and keep proxies from cutting an idle connection.
PING_PAUSE = 15.0
#: Seconds that such a statement may take.
PING_SECONDS = 10.0
#: Seconds between the end of the server's wait and the time at which the client stops listening.
WAIT_MARGIN = 2.0
#: Why a lock is not taken where it would exclude nobody.
ON_STANDBY = (
    "the server is a standby, and its advisory locks exclude nobody on the primary: add "
    "target_session_attrs=read-write and all hosts to the database URL"
)


class AdvisoryAcquisition(Acquisition):
    """One acquisition of one advisory lock: ``acquire``, ``keep``, ``release`` as for the other strategies.

    There is no fencing token: nothing in the server rises with each acquisition.
    """

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan, senses)
        assert plan.advisory is not None
        self._advisory = plan.advisory
        self.held = False

    @property
    def can_be_lost(self) -> bool:
        """Whether the lock is held: it is lost with its connection."""
        return self.held

    def acquire(self) -> Steps[bool]:
        """Takes the lock, or waits for it in the server's queue. True: it is held. False: it was asked to leave."""
        try:
            yield from self._take()
        except DislockError:
            yield from self._close()
            raise
        if not self.held:
            yield from self._close()
        return self.held

    def _take(self) -> Steps[None]:
        """Ends with ``held``, unless it was asked to leave."""
        plan, (key, name, _) = self._plan, self._advisory
        if (yield Wait(self._clock() + plan.delay)).leave:
            return
        by = self._clock() + plan.connect_timeout
        answer = yield from self._insist(lambda *_: Begin(), by)
        if not isinstance(answer, Done) or answer.leave:
            self._give_up(answer)
            return
        for statement in (Outlast(), Try(key)):
            answer = yield Execute(statement, by)
            if not proven(answer) or answer.leave:
                self._leave_or_fail(answer)
                return
            if isinstance(statement, Outlast) and answer.rows[0][0]:
                raise DatabaseUnavailableError(ON_STANDBY)
        taken = bool(answer.rows[0][0])
        if not taken and plan.wait:
            taken = yield from self._queue(key, name)
            if not taken:
                return
        if not taken:
            raise LockNotAcquiredError((yield from self._refused(key, name, by)), key=name)
        self.held = True
        self._began = self._clock()
        self._say("taken", INFO, f"{name} is taken (advisory lock {key})", key=name)

    def _queue(self, key: int, name: str) -> Steps[bool]:
        wait = self._plan.wait
        self._say("waiting", INFO, f"{name} is held: waiting for it up to {wait:g} s", key=name, wait_seconds=wait)
        answer = yield Execute(SetTimeout(max(1, round(wait * 1000))), self._clock() + PING_SECONDS)
        if not proven(answer) or answer.leave:
            return self._leave_or_fail(answer)
        answer = yield Execute(Queue(key), self._clock() + wait + WAIT_MARGIN, queues=True)
        if proven(answer):
            return not answer.leave
        # Only a timeout proves that somebody still holds it.
        if isinstance(answer, Failed) and answer.failure.timed_out and not answer.leave:
            raise LockWaitEndedError(f"gave up after {wait:.0f} s: {name} is still held by somebody else", key=name)
        return self._leave_or_fail(answer)

    def _refused(self, key: int, name: str, by: float) -> Steps[str]:
        high, low = (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF
        answer = yield Execute(Holder(high, low), by)
        found = answer.rows[0][0] if proven(answer) and answer.rows else None
        return f"{name} (advisory lock {key}) is held by {found or 'somebody else'}"

    def _leave_or_fail(self, answer: Answer) -> bool:
        """Returns False if it was asked to leave; else raises, because a failed transaction cannot go on."""
        if answer.leave:
            return False
        raise DatabaseUnavailableError(f"no lock: {trouble(answer)}")

    def keep(self) -> Steps[Loss | None]:
        """Watches the connection until asked to leave (returns None), or until it is lost (returns the loss)."""
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

    def release(
        self, *, started: bool = True, succeeded: bool = False, exit_code: int | None = None
    ) -> Steps[Loss | None]:
        """Commits, which frees the lock, and returns the loss if the lock was lost before.

        The run is recorded in the journal only after that: an error of a statement would end the transaction.
        """
        if self.held and not self.loss:
            answer = yield Execute(Commit(), self._clock() + LEAVE_SECONDS)
            if isinstance(answer, Done):
                name = self._advisory.name
                self._say("released", INFO, f"{name} is free again", key=name)
            else:
                self._connection_lost(trouble(answer), over=True)
        self.held = False
        if self._plan.journal:
            yield from self._record_outcome(started=started, succeeded=succeeded, exit_code=exit_code)
        yield from self._close()
        return self.loss

    def fail(self, why: str, *, succeeded: bool = False) -> None:  # noqa: ARG002 - nothing is sealed here
        """Makes the lock count as lost, because a fault of this process has ended the watch."""
        self._connection_lost(why)

    def _connection_lost(self, why: str, *, over: bool = False) -> Loss:
        _, name, grace = self._advisory
        self._connected = False
        # The server has freed the lock already, so the command gets its whole grace period.
        loss = Loss(LossReason.UNCONFIRMED, f"the advisory lock {name} was lost with its connection: {why}", grace)
        self._lose(loss, over=over)
        return loss
