"""Many locks of one process share two connections: which statement goes over which, when, and with which others.

No I/O; see ``steps``. A hub advances the protocols of its members, which know nothing of each other, and answers each
of their steps as a driver would. Its own two connections are protocols too (``Line``), for an ordinary driver:

- ``main`` renews. All renewals that are due go into one statement (a beat), which never waits for a row. **A beat only
  confirms:** a lease that it did not move is asked alone, by its own statement, whose answer decides.
- ``side`` carries all else, one statement after the other: renewals that are asked alone before releases, releases
  before claims. It is opened when it is needed, and closed when it was idle for a while. As long as nothing is renewed
  ``main`` does its work, so that one lease needs one connection.

Where a statement is not answered, the others do not wait for its connection: they get a further one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Protocol

from dislock.protocol.conversation import Conversation, Make
from dislock.protocol.lease import lock_timeout
from dislock.protocol.plan import Senses
from dislock.protocol.statements import (
    READS,
    ClaimLease,
    ClaimSlot,
    Held,
    Inspect,
    Moved,
    MoveExpiry,
    RenewMany,
    Statement,
)
from dislock.protocol.steps import (
    LINGER,
    NO_ANSWER,
    Answer,
    Close,
    Connect,
    Done,
    Execute,
    Failed,
    Failure,
    Step,
    Steps,
    Unanswered,
    Wait,
)

#: Seconds that a statement may wait for its row while others want the connection.
ROW_WAIT = 0.2
#: A renewal joins a beat when this part of its pause is over.
NEARLY_DUE = 0.75
#: The most renewals in one statement.
BEAT = 1000
#: In one beat nobody has more than this many times the time that the most pressed one has: its deadline is theirs.
SPREAD = 4
#: A statement with less time left than this, in seconds, is not sent: to give it up would cost all the connection.
LEAST = 0.02
#: Seconds after its last use at which the side connection is closed.
IDLE = 5.0
#: Seconds after which the others do not wait for a statement's connection any more, and how many there are at most.
STUCK, MOST_LINES = 0.5, 4
#: Seconds that a line has to say itself that a statement was not answered.
LATE = 0.05
#: How statements that are asked alone go before each other.
RENEWAL, RELEASE, CLAIM = range(3)
#: The cause where a statement was not sent.
NOT_SENT = "the statement was not sent in time: others were before it"

Ended = Callable[[Any, BaseException | None], None]


class Carrier(Protocol):
    """What a hub needs of the driver around it. Nothing of it may call the hub before it has returned."""

    def start(self, line: Line) -> None:
        """Has a driver of that line's own carry out ``line.serve()``; when it has ended, ``Hub.stopped`` is called."""

    def hurry(self, line: Line) -> None:
        """Requests the run of ``line.serve()`` to leave: its statement in flight has ``LINGER`` seconds more."""

    def call_at(self, moment: float) -> None:
        """Has ``Hub.tick`` called at that moment instead of the one asked for before."""


class Seat:
    """What one lock has instead of a connection of its own."""

    open = False


class Member:
    """One run of one protocol."""

    __slots__ = ("asked", "cause", "context", "ended", "keeps", "seat", "since", "steps", "ticket", "until")

    def __init__(self, seat: Seat, steps: Steps[Any], ended: Ended, context: Context, *, keeps: bool) -> None:
        self.seat, self.steps, self.ended = seat, steps, ended
        #: What the steps log is seen as if it was logged where they were begun.
        self.context = context
        #: It renews a lease.
        self.keeps = keeps
        self.asked = False
        self.ticket: Ticket | None = None
        #: Why its last statement that was sent has failed.
        self.cause = ""
        #: While it waits: since when and until when.
        self.since = self.until = math.nan

    def told(self) -> bool:
        """Whether there was a request to leave; each request is reported once."""
        asked, self.asked = self.asked, False
        return asked


class Ticket:
    """One statement of a member, until it is answered."""

    __slots__ = ("answered", "by", "member", "rank", "sent", "statement")

    def __init__(self, member: Member, statement: Statement, by: float) -> None:
        self.member, self.statement, self.by = member, statement, by
        self.answered = False
        self.sent: float | None = None
        if isinstance(statement, MoveExpiry) and member.keeps:
            self.rank = RENEWAL
        else:
            self.rank = CLAIM if isinstance(statement, (ClaimLease, ClaimSlot, *READS)) else RELEASE


class Job(NamedTuple):
    """What a line has to do next: a beat, or one statement alone."""

    tickets: Sequence[Ticket]
    beat: bool


class Hub:
    """The members, what is due when, and the two lines."""

    def __init__(self, targets: tuple[str, ...], senses: Senses, carrier: Carrier) -> None:
        self._clock = senses.clock
        self._carrier = carrier
        self._make_line = partial(Line, self, targets, senses)
        self.main = self._make_line()
        self._sides = [self._make_line()]
        self._members: dict[Member, None] = {}
        self._keepers: dict[Member, None] = {}
        self._seats: set[Seat] = set()
        #: Renewals for the next beat, and all else by rank.
        self._renewals: list[Ticket] = []
        self._queue: list[tuple[int, float, int, Ticket]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._alarm = math.inf

    @property
    def over(self) -> bool:
        """Nobody needs a connection, and nobody runs."""
        return not self._members and not self._seats

    @property
    def side(self) -> Line:
        return self._sides[0]

    @property
    def lines(self) -> list[Line]:
        """There are more than two as long as one is stuck."""
        return [self.main, *self._sides]

    # For the driver around it

    def run(
        self, seat: Seat, steps: Steps[Any], ended: Ended, context: Context | None = None, *, keeps: bool = False
    ) -> Member:
        """Runs a protocol to its end, then calls ``ended`` with its result or with the error that it raised."""
        member = Member(seat, steps, ended, context or copy_context(), keeps=keeps)
        self._members[member] = None
        if keeps:
            self._keepers[member] = None
        self._advance(member, None)
        self._stir()
        return member

    def request(self, member: Member) -> None:
        """Makes that member's run come to its end."""
        if member not in self._members:
            return
        member.asked = True
        if not math.isnan(member.until):
            self._wake(member)
        elif ticket := member.ticket:
            self._shorten(ticket)
            self._hurry_for_leavers()
        self._stir()

    def leave(self, seat: Seat) -> None:
        """That lock needs no connection any more."""
        seat.open = False
        self._seats.discard(seat)
        self._stir()

    def tick(self) -> None:
        """Does what is due."""
        self._alarm = math.inf
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2]()
        self._stir()

    def stopped(self, line: Line, error: BaseException | None = None) -> None:
        """The run of ``line.serve()`` has ended; ``error``: not as it should."""
        line.running = False
        if line in self._sides[1:] and not line.connected:
            self._sides.remove(line)
        for ticket in line.dropped():
            if error is None:
                self.answer(ticket, Unanswered())
            elif not ticket.answered:
                ticket.answered = True
                ticket.member.ticket = None
                self._finish(ticket.member, None, error)
        self._stir()

    # For the lines

    def next_job(self, line: Line) -> Job | None:
        if line is self.main and (beat := self._next_beat()):
            return Job(beat, beat=True)
        if line in self._carriers():
            while self._queue:
                ticket = heappop(self._queue)[3]
                # One that is too late gets its answer from its timer.
                if not ticket.answered and ticket.by - self._clock() > LEAST:
                    return Job([ticket], beat=False)
        return None

    def unused(self, line: Line) -> bool:
        """Whether the line's connection is to be closed."""
        return self.over or (line is not self.main and line.used + IDLE <= self._clock())

    def idle_at(self, moment: float) -> None:
        """A line may have nothing to do any more then."""
        self._at(moment, lambda: None)

    @property
    def alone(self) -> bool:
        """Nobody else wants the connection."""
        return not any(not ticket.answered for *_, ticket in self._queue)

    @property
    def keeping(self) -> bool:
        """There are leases that a claim could disturb."""
        return bool(self._keepers)

    def answer(self, ticket: Ticket, answer: Answer) -> None:
        """Hands a member its answer, unless it has had one."""
        if ticket.answered:
            return
        ticket.answered = True
        member = ticket.member
        member.ticket = None
        if isinstance(answer, Done):
            member.cause, answer = "", answer._replace(sent=ticket.sent)
        elif isinstance(answer, Failed):
            member.cause = answer.failure.text
        self._advance(member, answer._replace(leave=member.told()))

    def confirm(self, tickets: Sequence[Ticket], answer: Answer, *, connected: bool) -> None:
        """Hands out the answer to a beat: it confirms, or a failure of all; who is not in it is asked alone."""
        if isinstance(answer, Done):
            moved = {row.number: row.now for row in answer.rows}
            for number, ticket in enumerate(tickets):
                statement = ticket.statement
                assert isinstance(statement, MoveExpiry)
                if number in moved:
                    row = Moved(moved[number], 1, statement.owner, statement.expires)
                    self.answer(ticket, Done((row,), doubt=answer.doubt))
                else:
                    self._ask_alone(ticket)
        elif isinstance(answer, Failed) and connected and len(tickets) > 1:
            # It may be the fault of one of them.
            for ticket in tickets:
                ticket.member.cause = answer.failure.text
                self._ask_alone(ticket)
        else:
            for ticket in tickets:
                self.answer(ticket, answer)
        self._stir()

    # Members

    def _advance(self, member: Member, answer: Answer | None) -> None:
        while True:
            try:
                # A generator is started by sending it None.
                step = member.context.run(member.steps.send, answer)  # type: ignore[arg-type]
            except StopIteration as end:
                self._finish(member, end.value, None)
                return
            except BaseException as error:  # noqa: BLE001 - handed over to whoever waits for it
                self._finish(member, None, error)
                return
            answer = self._begin(member, step)
            if answer is None:
                return

    def _begin(self, member: Member, step: Step) -> Answer | None:
        """Begins a step; its answer if it is over at once."""
        now = self._clock()
        if isinstance(step, Wait):
            if member.asked or step.until <= now:
                return Done(leave=member.told())
            member.since, member.until = now, step.until
            self._at(step.until, partial(self._due, member, step.until))
            return None
        if isinstance(step, Execute):
            assert isinstance(step.statement, Statement)
            ticket = member.ticket = Ticket(member, step.statement, step.by)
            if member.asked:
                self._shorten(ticket)
            self._at(ticket.by, partial(self._too_late, ticket))
            if ticket.rank == RENEWAL:
                self._renewals.append(ticket)
                if self.main.job and self.main.rank != RENEWAL:
                    self._replace_main()
            else:
                self._ask_alone(ticket)
            return None
        if isinstance(step, Connect):
            # The lines connect by themselves. But whoever asks for another connection had no luck with this one.
            for line in self.lines:
                line.stale = line.stale or line.soured
            member.seat.open = True
            self._seats.add(member.seat)
        else:
            assert isinstance(step, Close)
            member.seat.open = False
            self._seats.discard(member.seat)
        return Done(leave=member.told())

    def _finish(self, member: Member, result: Any, error: BaseException | None) -> None:
        self._members.pop(member, None)
        self._keepers.pop(member, None)
        member.ended(result, error)

    def _due(self, member: Member, until: float) -> None:
        if member.until != until:
            return
        if not member.keeps:
            self._wake(member)
            return
        now = self._clock()
        for keeper in [*self._keepers]:
            if now - keeper.since >= NEARLY_DUE * (keeper.until - keeper.since):
                self._wake(keeper)

    def _wake(self, member: Member) -> None:
        member.since = member.until = math.nan
        self._advance(member, Done(leave=member.told()))

    # Statements

    def _ask_alone(self, ticket: Ticket) -> None:
        if not ticket.answered:
            heappush(self._queue, (ticket.rank, ticket.by, next(self._serial), ticket))
            self._at(self._clock() + STUCK, lambda: None)
            for line in self.lines:
                if line.job and line.patient:
                    # What may wait for long gives way to whoever comes. A renewal can be tried again.
                    line.patient = False
                    self._carrier.hurry(line)

    def _carriers(self) -> list[Line]:
        """What carries all else, in the order in which they are started."""
        return self._sides if self._keepers else self.lines

    def _next_carrier(self) -> Line | None:
        """Which line to start for the statements that wait; None: one is at work already, or there is none left."""
        for line in self._carriers():
            if not line.running:
                return line
            if not line.job or self._clock() < line.begun + STUCK:
                return None
        if len(self.lines) == MOST_LINES:
            return None
        self._sides.append(self._make_line())
        return self._sides[-1]

    def _replace_main(self) -> None:
        """Renewals do not wait for anything else: the line that has none of it under way becomes the main one."""
        idle = next((number for number, line in enumerate(self._sides) if not line.job), None)
        if idle is not None:
            self.main, self._sides[idle] = self._sides[idle], self.main
        elif len(self.lines) < MOST_LINES:
            self._sides.append(self.main)
            self.main = self._make_line()

    def _next_beat(self) -> list[Ticket]:
        now = self._clock()
        waiting = sorted((t for t in self._renewals if not t.answered and t.by - now > LEAST), key=lambda t: t.by)
        if not waiting:
            self._renewals.clear()
            return []
        limit = now + SPREAD * (waiting[0].by - now)
        beat = [ticket for ticket in waiting if ticket.by <= limit][:BEAT]
        self._renewals = waiting[len(beat) :]
        return beat

    def _shorten(self, ticket: Ticket) -> None:
        ticket.by = min(ticket.by, self._clock() + LINGER)
        self._at(ticket.by, partial(self._too_late, ticket))

    def _too_late(self, ticket: Ticket) -> None:
        if ticket.answered:
            return
        under_way = any(ticket in line.job for line in self.lines)
        if under_way and self._clock() < ticket.by + LATE:
            self._at(ticket.by + LATE, partial(self._too_late, ticket))
            return
        if ticket.sent is not None:
            self.answer(ticket, Unanswered())
        else:
            self.answer(ticket, Failed(Failure(ticket.member.cause or (NO_ANSWER if under_way else NOT_SENT))))
        self._hurry_for_leavers()

    def _hurry_for_leavers(self) -> None:
        """Nobody is left who needs the answer for longer than ``LINGER``."""
        for line in self.lines:
            if line.running and line.job and all(t.answered or t.member.asked for t in line.job):
                self._carrier.hurry(line)

    # Time

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heappush(self._timers, (moment, next(self._serial), action))

    def _stir(self) -> None:
        """Starts the lines that have something to do, and sets the alarm."""
        for line in self.lines:
            if (line is self.main and self._renewals) or (line.connected and self.unused(line)):
                self._start(line)
        if self._queue and (carrier := self._next_carrier()):
            self._start(carrier)
        if self._timers and self._timers[0][0] < self._alarm:
            self._alarm = self._timers[0][0]
            self._carrier.call_at(self._alarm)

    def _start(self, line: Line) -> None:
        if not line.running:
            line.running = True
            self._carrier.start(line)


class Line(Conversation):
    """One connection of a hub, over which one statement goes at a time."""

    def __init__(self, hub: Hub, targets: tuple[str, ...], senses: Senses) -> None:
        super().__init__(targets, senses, math.inf)
        self._hub = hub
        self.running = False
        #: The statements under way, and their rank.
        self.job: Sequence[Ticket] = ()
        self.rank = RENEWAL
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
            self.job, self.begun = job.tickets, self._clock()
            if job.beat:
                yield from self._beat(job.tickets)
            else:
                yield from self._alone(job.tickets[0])
            self.job, self.patient = (), False
            self.used = self._clock()
        if self._hub.unused(self):
            yield from self._close()
        elif self is not self._hub.main:
            self._hub.idle_at(self.used + IDLE)

    def dropped(self) -> Sequence[Ticket]:
        """What was under way when the run ended: nothing, unless something went wrong."""
        job, self.job = self.job, ()
        if job:
            self.patient, self._connected = False, False
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
            # Where there is no other connection to be had, this one will do.
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


def renew_many(moves: Sequence[Statement], timeout: str) -> RenewMany:
    """One statement for many renewals; each has the number of its place."""
    many = RenewMany([], [], [], [], [], timeout)
    for number, move in enumerate(moves):
        assert isinstance(move, MoveExpiry)
        # The last one: it was moved already by this very statement, whose answer was lost.
        for ends in (*move.known, move.expires):
            many.numbers.append(number)
            many.keys.append(move.key)
            many.owners.append(move.owner)
            many.ends.append(ends)
            many.expires.append(move.expires)
    return many
