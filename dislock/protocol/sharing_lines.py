"""The connections that the locks of one process share: how each sends its statements, and which of them there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from dislock.protocol.conversation import Conversation, Make
from dislock.protocol.lease import lock_timeout
from dislock.protocol.plan import Senses
from dislock.protocol.sharing_tickets import LEAST, RENEWAL, Job, Ticket, renew_many
from dislock.protocol.statements import READS, ClaimLease, ClaimSlot, Held, Inspect, RenewMany, Statement
from dislock.protocol.steps import NO_ANSWER, Answer, Done, Failed, Failure, Steps, Unanswered

#: Seconds that a statement may wait for its row while others want the connection.
ROW_WAIT = 0.2
#: Seconds after its last use at which the side connection is closed.
IDLE = 5.0
#: Seconds after which the others do not wait for a statement's connection any more, and how many there are at most.
STUCK, MOST_LINES = 0.5, 4


class Dispatcher(Protocol):
    """What a line needs of its hub."""

    @property
    def main(self) -> Line:
        """The line that renews."""

    @property
    def alone(self) -> bool:
        """Nobody else wants the connection."""

    @property
    def keeping(self) -> bool:
        """There are leases that a claim could disturb."""

    def next_job(self, line: Line) -> Job | None:
        """What that line sends next."""

    def answer(self, ticket: Ticket, answer: Answer) -> None:
        """Hands out the answer to a statement that was sent alone."""

    def confirm(self, tickets: Sequence[Ticket], answer: Answer, *, connected: bool) -> None:
        """Hands out the answer to a beat."""

    def unused(self, line: Line) -> bool:
        """Whether the line's connection is to be closed."""

    def idle_at(self, moment: float) -> None:
        """A line may have nothing to do any more then."""


class Line(Conversation):
    """One connection of a hub, over which one statement goes at a time."""

    def __init__(self, hub: Dispatcher, targets: tuple[str, ...], senses: Senses) -> None:
        super().__init__(targets, senses, math.inf)
        self._hub = hub
        self.running = False
        #: The statements under way, and their rank.
        self.job: Sequence[Ticket] = ()
        self.rank: int
        #: The statement under way may wait for its row as long as it has time, because nobody else was there.
        self.patient = False
        #: The last statement failed on this connection; somebody wanted another one since.
        self.soured = self.stale = False
        #: When it began with what it has under way, and when it had last ended something.
        self.begun = self.used = -math.inf

    @property
    def connected(self) -> bool:
        return self._connected

    def serve(self) -> Steps[None]:
        """Carries out what there is to do. The connection stays open unless nobody needs it."""
        while job := self._hub.next_job(self):
            self.job, self.begun, self.patient = job.tickets, self._clock(), False
            if job.beat:
                yield from self._beat(job.tickets)
            else:
                yield from self._alone(job.tickets[0])
            self.job, self.used = (), self._clock()
        if self._hub.unused(self):
            yield from self._close()
        elif self is not self._hub.main:
            self._hub.idle_at(self.used + IDLE)

    def dropped(self) -> Sequence[Ticket]:
        """What was under way when the run ended: nothing, unless something went wrong."""
        job, self.job = self.job, ()
        if job:
            self._connected = False
        return job

    def _beat(self, tickets: Sequence[Ticket]) -> Steps[None]:
        self.rank = RENEWAL

        def make(now: float, by: float) -> RenewMany:
            for ticket in tickets:
                ticket.sent = now
            return renew_many([ticket.statement for ticket in tickets], lock_timeout(now, by))

        answer = yield from self._try(make, tickets[0].by)
        self._hub.confirm(tickets, answer, connected=self._connected)

    def _alone(self, ticket: Ticket) -> Steps[None]:
        statement = ticket.statement
        self.rank = ticket.rank
        if self.stale and self._connected:
            # If no other connection can be opened, this one is used.
            now = self._clock()
            yield from self._reach(now + (ticket.by - now) / 2)
        if isinstance(statement, (ClaimLease, ClaimSlot)) and self._hub.keeping:
            refusal = yield from self._look(statement, ticket.by)
            if refusal:
                self._hub.answer(ticket, refusal)

        def make(now: float, by: float) -> Statement:
            ticket.sent = now
            if isinstance(statement, READS):
                return statement
            self.patient = ticket.rank == RENEWAL and self._hub.alone
            limit = by if self.patient else min(by, now + ROW_WAIT)
            return statement._replace(lock_timeout=lock_timeout(now, limit))

        if not self._connected and not ticket.answered:
            failed = yield from self._reach(ticket.by)
            if failed:
                self.soured = True
                self._hub.answer(ticket, failed)
        # While the connection was opened, its owner may have left, with the answer that nothing was sent.
        if not ticket.answered:
            self._hub.answer(ticket, (yield from self._try(make, ticket.by)))

    def _look(self, claim: ClaimLease | ClaimSlot, by: float) -> Steps[Answer | None]:
        """A plain read before a claim, which would lock the row of whoever holds it: the refusal, if it is held."""
        answer = yield from self._try(lambda *_: Inspect(claim.key), by)
        if isinstance(answer, Done):
            held: Held = answer.rows[0]
            start = held.now if isinstance(claim, ClaimLease) else max(held.now, claim.tick or held.now)
            return Done() if held.ends is not None and held.ends > start else None
        # The claim itself was never sent.
        return Failed(Failure(NO_ANSWER) if isinstance(answer, Unanswered) else answer.failure._replace(broken=False))

    def _try(self, make: Make, by: float) -> Steps[Answer]:
        answer = yield from self._ask(make, by)
        self.soured = not isinstance(answer, Done)
        return answer

    def _reach(self, by: float) -> Steps[Failed | None]:
        """A request to leave hurries a statement on; it does not keep the others from their connection."""
        self.stale = self.soured = False
        while True:
            self._connected, before = False, self._connected
            failed = yield from super()._reach(by)
            if self._connected:
                return None
            self._connected = before
            assert failed is not None
            wanted = any(not ticket.answered for ticket in self.job)
            if not failed.leave or not wanted or by - self._clock() <= LEAST:
                return failed


class Lines:
    """Which lines there are: ``main``, one at its side, and a further one for each that is stuck."""

    def __init__(self, make: Callable[[], Line], clock: Callable[[], float]) -> None:
        self._make, self._clock = make, clock
        self.main = make()
        self.sides = [make()]

    @property
    def all(self) -> list[Line]:
        return [self.main, *self.sides]

    def carriers(self, *, keeping: bool) -> list[Line]:
        """What carries all but beats, in the order in which they are started; ``keeping``: ``main`` has to renew."""
        return self.sides if keeping else self.all

    def next_carrier(self, *, keeping: bool) -> Line | None:
        """Which line to start for the statements that wait; None: one is at work already, or there is none left."""
        for line in self.carriers(keeping=keeping):
            if not line.running:
                return line
            if not line.job or self._clock() < line.begun + STUCK:
                return None
        if len(self.all) == MOST_LINES:
            return None
        self.sides.append(self._make())
        return self.sides[-1]

    def replace_main(self) -> None:
        """Renewals do not wait for anything else: the line that has none of it under way becomes the main one."""
        idle = next((number for number, line in enumerate(self.sides) if not line.job), None)
        if idle is not None:
            self.main, self.sides[idle] = self.sides[idle], self.main
        elif len(self.all) < MOST_LINES:
            self.sides.append(self.main)
            self.main = self._make()

    def forget(self, line: Line) -> None:
        """A further line that has lost its connection is not needed any more."""
        if line in self.sides[1:] and not line.connected:
            self.sides.remove(line)
