"""What waits to be sent over a shared connection: which goes first, which goes together, and which goes no more."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from dislock.protocol.sharing_tickets import Member, Seat, Ticket, Waiting
from dislock.protocol.statements import ClaimLease, MoveExpiry

RENEWAL = MoveExpiry("k", "host:1", "9s", [1], 2)
CLAIM = ClaimLease("k", "host:1", "9s", 10)
#: A statement with no more time than this is not sent.
LEAST = 0.02
NOW = 0.0


def ticket(by: float = 10.0, statement: MoveExpiry | ClaimLease = RENEWAL, *, answered: bool = False) -> Ticket:
    made = Ticket(Member(Seat(), (_ for _ in ()), lambda *_: None, copy_context(), keeps=True), statement, by)
    made.answered = answered
    return made


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_a_lock_has_no_connection_before_it_asks_for_one() -> None:
    assert not Seat().open


@pytest.mark.parametrize("dead", [{"answered": True}, {"by": LEAST}, {"by": -1.0}])
def test_what_is_answered_or_too_late_is_not_sent(waiting: Waiting, dead: dict[str, float]) -> None:
    gone, live = ticket(**dead), ticket(by=LEAST * 1.25)  # type: ignore[arg-type] # a bool is a number here
    waiting.add_renewal(gone)
    assert waiting.renewals
    assert waiting.next_beat(NOW) == []
    assert not waiting.renewals, "nobody is woken for it again"
    waiting.add_renewal(gone)
    waiting.add_renewal(live)
    assert waiting.next_beat(NOW) == [live]
    waiting.add(gone)
    waiting.add(live)
    assert waiting.next_other(NOW) is live
    assert waiting.next_other(NOW) is None
    assert not waiting.others


def test_what_was_in_time_once_may_be_too_late_now(waiting: Waiting) -> None:
    waiting.add_renewal(ticket(10.0))
    waiting.add(ticket(10.0))
    assert waiting.next_beat(10.0) == []
    assert waiting.next_other(10.0) is None


def test_somebody_is_waiting_as_long_as_one_is_not_answered(waiting: Waiting) -> None:
    assert not waiting.wanted
    waiting.add(ticket(answered=True))
    assert waiting.others
    assert not waiting.wanted
    waiting.add(ticket())
    assert waiting.wanted


def test_a_renewal_goes_first_and_then_who_has_least_time(waiting: Waiting) -> None:
    claim, late, soon = ticket(5.0, CLAIM), ticket(9.0), ticket(8.0)
    for each in (claim, late, soon):
        waiting.add(each)
    assert [waiting.next_other(NOW) for _ in range(3)] == [soon, late, claim]
