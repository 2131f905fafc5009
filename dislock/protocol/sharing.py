"""Many locks of one process share two connections: a hub runs their protocols, and answers what they ask.

No I/O; see ``steps``. A hub advances the protocols of its members, which know nothing of each other, and answers each
of their steps as a driver would. Which statement goes before which is decided in ``sharing_tickets``. The hub's own two
connections are protocols too (``sharing_lines``), for an ordinary driver:

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
from typing import Any, Protocol

from dislock.protocol.plan import Senses
from dislock.protocol.sharing_lines import IDLE, STUCK, Line, Lines
from dislock.protocol.sharing_tickets import RENEWAL, Ended, Job, Member, Seat, Ticket, Waiting
from dislock.protocol.statements import Moved, MoveExpiry, Statement
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

#: A renewal joins a beat when this part of its pause is over.
NEARLY_DUE = 0.75
#: Seconds that a line has to say itself that a statement was not answered.
LATE = 0.05
#: The cause where a statement was not sent.
NOT_SENT = "the statement was not sent in time: others were before it"


class Carrier(Protocol):
    """What a hub needs of the driver around it. Nothing of it may call the hub before it has returned."""

    def start(self, line: Line) -> None:
        """Has a driver of that line's own carry out ``line.serve()``; when it has ended, ``Hub.stopped`` is called."""

    def hurry(self, line: Line) -> None:
        """Requests the run of ``line.serve()`` to leave: its statement in flight has ``LINGER`` seconds more."""

    def call_at(self, moment: float) -> None:
        """Has ``Hub.tick`` called at that moment instead of the one asked for before."""


class Hub:
    """The members, what is due when, and the two lines."""

    def __init__(self, targets: tuple[str, ...], senses: Senses, carrier: Carrier) -> None:
        self._clock = senses.clock
        self._carrier = carrier
        self._lines = Lines(partial(Line, self, targets, senses), senses.clock)
        self._members: dict[Member, None] = {}
        self._keepers: dict[Member, None] = {}
        self._seats: set[Seat] = set()
        self._waiting = Waiting()
        #: When, whether it is of no use any more, and what is done.
        self._timers: list[tuple[float, int, Callable[[], bool], Callable[[], None]]] = []
        self._serial = count()
        self._alarm = math.inf

    @property
    def over(self) -> bool:
        """Nobody needs a connection, and nobody runs."""
        return not self._members and not self._seats

    @property
    def main(self) -> Line:
        return self._lines.main

    @property
    def side(self) -> Line:
        return self._lines.sides[0]

    @property
    def lines(self) -> list[Line]:
        """There are more than two as long as one is stuck."""
        return self._lines.all

    # For the driver around it

    def run(
        self, seat: Seat, steps: Steps[Any], ended: Ended, context: Context | None = None, *, keeps: bool
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
            *_, over, action = heappop(self._timers)
            if not over():
                action()
        self._stir()

    def stopped(self, line: Line, error: BaseException | None = None) -> None:
        """The run of ``line.serve()`` has ended; ``error``: not as it should."""
        line.running = False
        self._lines.forget(line)
        for ticket in line.dropped():
            if error is None:
                self._answer(ticket, Unanswered())
            elif not ticket.answered:
                ticket.answered = True
                self._finish(ticket.member, None, error)
                self.leave(ticket.member.seat)
        self._stir()

    # For the lines

    def next_job(self, line: Line) -> Job | None:
        job = self._next_job(line)
        if job and (self._waiting.renewals or self._waiting.others):
            # What waits behind it is sent over another line if this one gets stuck.
            self._at(self._clock() + STUCK, lambda: None)
            self._set_alarm()
        return job

    def _next_job(self, line: Line) -> Job | None:
        if line is self.main and (beat := self._waiting.next_beat(self._clock())):
            return Job(beat, beat=True)
        if line in self._lines.carriers(keeping=self.keeping) and (ticket := self._waiting.next_other(self._clock())):
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
        return not self._waiting.wanted

    @property
    def keeping(self) -> bool:
        """There are leases that a claim could disturb."""
        return bool(self._keepers)

    def answer(self, ticket: Ticket, answer: Answer) -> None:
        """Hands a member its answer, unless it has had one."""
        self._answer(ticket, answer)
        self._stir()

    def _answer(self, ticket: Ticket, answer: Answer) -> None:
        if ticket.answered:
            return
        ticket.answered = True
        member = ticket.member
        if isinstance(answer, Done):
            member.cause, answer = "", answer._replace(sent=ticket.sent)
        elif isinstance(answer, Failed):
            member.cause = answer.failure.text
        self._advance(member, answer._replace(leave=member.take_request()))

    def confirm(self, tickets: Sequence[Ticket], answer: Answer, *, connected: bool) -> None:
        """Hands out the answer to a beat: it confirms, or a failure of all; who is not in it is asked alone."""
        if isinstance(answer, Done):
            moved = {row.number: row.now for row in answer.rows}
            for number, ticket in enumerate(tickets):
                statement = ticket.statement
                assert isinstance(statement, MoveExpiry)
                if number in moved:
                    row = Moved(moved[number], 1, statement.owner, statement.expires)
                    self._answer(ticket, Done((row,), doubt=answer.doubt))
                else:
                    self._ask_alone(ticket)
        elif isinstance(answer, Failed) and connected and len(tickets) > 1:
            # It may be the fault of one of them. It moved no row, as if it had not been sent.
            for ticket in tickets:
                ticket.sent, ticket.member.cause = None, answer.failure.text
                self._ask_alone(ticket)
        else:
            for ticket in tickets:
                self._answer(ticket, answer)
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
                return Done(leave=member.take_request())
            member.since, member.until = now, step.until
            self._at(step.until, partial(self._due, member), lambda: member.until != step.until)
            return None
        if isinstance(step, Execute):
            assert isinstance(step.statement, Statement)
            ticket = member.ticket = Ticket(member, step.statement, step.by)
            if member.asked:
                self._shorten(ticket)
            self._watch(ticket, ticket.by)
            if ticket.rank == RENEWAL:
                self._waiting.add_renewal(ticket)
                if self.main.job:
                    self._at(self.main.begun + STUCK, lambda: None)
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
        return Done(leave=member.take_request())

    def _finish(self, member: Member, result: Any, error: BaseException | None) -> None:
        self._members.pop(member, None)
        self._keepers.pop(member, None)
        member.ended(result, error)

    def _due(self, member: Member) -> None:
        if not member.keeps:
            self._wake(member)
            return
        now = self._clock()
        for keeper in [*self._keepers]:
            if now - keeper.since >= NEARLY_DUE * (keeper.until - keeper.since):
                self._wake(keeper)

    def _wake(self, member: Member) -> None:
        member.since = member.until = math.nan
        self._advance(member, Done(leave=member.take_request()))

    # Statements

    def _ask_alone(self, ticket: Ticket) -> None:
        if not ticket.answered:
            self._waiting.add(ticket)
            self._at(self._clock() + STUCK, lambda: None)
            for line in self.lines:
                if line.job and line.patient:
                    # What may wait for long gives way to whoever comes. A renewal can be tried again.
                    line.patient = False
                    self._carrier.hurry(line)

    def _shorten(self, ticket: Ticket) -> None:
        ticket.by = min(ticket.by, self._clock() + LINGER)
        self._watch(ticket, ticket.by)

    def _watch(self, ticket: Ticket, moment: float) -> None:
        self._at(moment, partial(self._too_late, ticket), lambda: ticket.answered)

    def _too_late(self, ticket: Ticket) -> None:
        under_way = any(ticket in line.job for line in self.lines)
        if under_way and self._clock() < ticket.by + LATE:
            self._watch(ticket, ticket.by + LATE)
            return
        if ticket.sent is not None:
            self._answer(ticket, Unanswered())
        else:
            self._answer(ticket, Failed(Failure(ticket.member.cause or (NO_ANSWER if under_way else NOT_SENT))))
        self._hurry_for_leavers()

    def _hurry_for_leavers(self) -> None:
        """Nobody is left who needs the answer for longer than ``LINGER``."""
        for line in self.lines:
            if line.running and line.job and all(t.answered or t.member.asked for t in line.job):
                self._carrier.hurry(line)

    # Time

    def _at(self, moment: float, action: Callable[[], None], over: Callable[[], bool] = lambda: False) -> None:
        heappush(self._timers, (moment, next(self._serial), over, action))

    def _stir(self) -> None:
        """Starts the lines that have something to do, and sets the alarm."""
        main = self.main
        if self._waiting.renewals and main.job and (main.rank != RENEWAL or self._clock() >= main.begun + STUCK):
            self._lines.replace_main()
        for line in self.lines:
            if (line is self.main and self._waiting.renewals) or (line.connected and self.unused(line)):
                self._start(line)
        if self._waiting.others and (carrier := self._lines.next_carrier(keeping=self.keeping)):
            self._start(carrier)
        self._set_alarm()

    def _set_alarm(self) -> None:
        # Nobody is woken for what others have done already: of a thousand leases that are renewed at once, one was due.
        while self._timers and self._timers[0][2]():
            heappop(self._timers)
        if self._timers and self._timers[0][0] < self._alarm:
            self._alarm = self._timers[0][0]
            self._carrier.call_at(self._alarm)

    def _start(self, line: Line) -> None:
        if not line.running:
            line.running = True
            self._carrier.start(line)
