"""What the locks that share connections want to send: which statement goes first, and which go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from dislock.protocol.statements import READS, ClaimLease, ClaimSlot, MoveExpiry, RenewMany, Statement
from dislock.protocol.steps import Steps

#: The most renewals in one statement.
BEAT = 1000
#: In one beat nobody has more than this many times the time that the most pressed one has: its deadline is theirs.
SPREAD = 4
#: A statement with less time left than this, in seconds, is not sent: to give it up would cost all the connection.
LEAST = 0.02
#: How statements that are asked alone go before each other.
RENEWAL, RELEASE, CLAIM = range(3)

Ended = Callable[[Any, BaseException | None], None]


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

    def take_request(self) -> bool:
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


class Waiting:
    """The statements that were not sent yet: renewals for the next beat, and all others one by one."""

    def __init__(self) -> None:
        self._renewals: list[Ticket] = []
        self._others: list[tuple[int, float, int, Ticket]] = []
        self._serial = count()

    def add_renewal(self, ticket: Ticket) -> None:
        self._renewals.append(ticket)

    def add(self, ticket: Ticket) -> None:
        heappush(self._others, (ticket.rank, ticket.by, next(self._serial), ticket))

    @property
    def renewals(self) -> bool:
        """Whether there may be one for a beat."""
        return bool(self._renewals)

    @property
    def others(self) -> bool:
        """Whether there may be one that is sent alone."""
        return bool(self._others)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for one that is sent alone."""
        return any(not ticket.answered for *_, ticket in self._others)

    def next_beat(self, now: float) -> list[Ticket]:
        """The renewals that go into one statement now; none: there is none."""
        waiting = sorted((t for t in self._renewals if not t.answered and t.by - now > LEAST), key=lambda t: t.by)
        if not waiting:
            self._renewals.clear()
            return []
        limit = now + SPREAD * (waiting[0].by - now)
        beat = [ticket for ticket in waiting if ticket.by <= limit][:BEAT]
        self._renewals = waiting[len(beat) :]
        return beat

    def next_other(self, now: float) -> Ticket | None:
        """What is sent alone now."""
        while self._others:
            ticket = heappop(self._others)[3]
            # One that is too late gets its answer from its timer.
            if not ticket.answered and ticket.by - now > LEAST:
                return ticket
        return None


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
