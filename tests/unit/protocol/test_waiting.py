"""Waiting for a lease: when it looks, what it claims, and how a wait ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    LockNotAcquiredError,
    LockWaitEndedError,
    UnknownOutcomeError,
)
from dislock.protocol.claiming import VACANT_TRIES
from dislock.protocol.statements import ClaimLease, ClaimSlot, GiveBackSlot, Inspect, ReadClock, to_micros
from dislock.protocol.steps import Answer, Connect, Done, Execute, Failed, Failure, Step, Unanswered, Wait
from tests.unit.protocol.test_acquisition import (
    BROKEN,
    GONE,
    HELD,
    NONE,
    NOW,
    REFUSED,
    SECOND,
    SLOT,
    TERMS,
    Hourly,
    Script,
    plan,
    rows,
    slot_plan,
)

Answering = Callable[[Step], Answer | None]
Database = Callable[[int], tuple[str | None, int | None]]

#: Seconds between two looks, at most; seconds after the end of a row at which it is looked at, at most.
LOOK_PAUSE, LOOK_AFTER_END = 1.0, 0.05


def table(script: list[Script], row: Database, claim: Done | None = None) -> Callable[[Step], Answer | None]:
    """A server whose row is what ``row`` says of the time; a claim is answered by it, or with ``claim``."""

    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        now = NOW + round((script[0].now - 100) * SECOND)
        holder, ends = row(now)
        if isinstance(step.statement, Inspect):
            return Done(((holder, ends, now),))
        free = holder is None or ends is None or ends <= now
        return claim or (Done(((now, now + 60 * SECOND, "timestamp with time zone"),)) if free else NONE)

    return answer


def waiting(row: Database, claim: Done | None = None, **changes: Any) -> Script:
    here: list[Script] = []
    script = Script(plan(**{"lease": TERMS, "wait": 30.0, **changes}), table(here, row, claim))
    here.append(script)
    return script


def until(seconds: float, holder: str = "other:7") -> Database:
    """Somebody holds the lease until then, renewing it, and then frees it."""
    return lambda now: (holder, now + 9 * SECOND if now < NOW + seconds * SECOND else NOW)


def test_a_waiter_reads_until_the_lease_is_free_and_claims_once() -> None:
    script = waiting(until(7))
    assert script.run(script.protocol.acquire()) is True
    kinds = [type(statement) for statement in script.statements]
    assert kinds == [Inspect] * (len(kinds) - 1) + [ClaimLease]
    pauses = [step.until for step in script.steps if isinstance(step, Wait)][1:]
    assert len(pauses) == len(kinds) - 2
    assert 107 <= script.now <= 107 + LOOK_PAUSE
    assert len([step for step in script.steps if isinstance(step, Connect)]) == 1
    assert script.events == ["waiting", "taken"]
    assert script.fields["waiting"]["wait_seconds"] == 30
    assert not script.warnings


def test_pauses_are_jittered_and_at_most_a_second() -> None:
    ends = set()
    for chance in (0.0, 0.5, 0.999):
        script = waiting(until(7))
        script.protocol._chance = _always(chance)
        script.run(script.protocol.acquire())
        moments = [step.until for step in script.steps if isinstance(step, Wait)]
        gaps = {round(after - before, 6) for before, after in pairwise(moments)}
        assert all(LOOK_PAUSE / 2 <= gap <= LOOK_PAUSE for gap in gaps)
        ends |= gaps
    assert len(ends) == 3
    assert max(ends) > 0.99 * LOOK_PAUSE


def _always(chance: float) -> Callable[[], float]:
    return lambda: chance


def test_it_looks_right_after_the_end_of_the_row() -> None:
    ends = NOW + 300_000
    script = waiting(lambda now: ("other:7", ends))
    assert script.run(script.protocol.acquire()) is True
    assert 100.3 <= script.now <= 100.3 + LOOK_AFTER_END


def test_a_wait_in_vain_ends_in_time_and_says_who_holds_it() -> None:
    script = waiting(until(1000))
    with pytest.raises(LockWaitEndedError, match=r"gave up after 30 s: .* is held by other:7 until") as caught:
        script.run(script.protocol.acquire())
    assert script.now == pytest.approx(130)
    assert caught.value.holder == "other:7"
    assert caught.value.expires_at is not None
    assert ClaimLease not in {type(statement) for statement in script.statements}


def test_the_last_look_has_time_for_its_answer() -> None:
    script = waiting(until(1000))
    with pytest.raises(LockWaitEndedError):
        script.run(script.protocol.acquire())
    last = [step for step in script.steps if isinstance(step, Execute)][-1]
    assert last.by == pytest.approx(script.now + 1)


def test_a_claim_that_another_waiter_won_is_waited_for_again() -> None:
    """The row is free at each look, and another's at each claim: with very short jobs that can go on for long."""
    looks = 0

    def row(now: int) -> tuple[str, int]:
        nonlocal looks
        looks += 1
        return f"other:{looks}", NOW - 1

    script = waiting(row, NONE, wait=5.0)
    script._answer = limited(script._answer, 60)
    with pytest.raises(Stop):
        script.run(script.protocol.acquire())


def test_a_row_that_stays_the_same_while_claims_are_refused_is_held_by_nobody() -> None:
    for script in (waiting(lambda now: (None, None), NONE), waiting(lambda now: ("other:7", NOW - 1), NONE, wait=0.0)):
        with pytest.raises(DatabaseUnavailableError, match="although nobody holds it"):
            script.run(script.protocol.acquire())
        assert [type(statement) for statement in script.statements].count(ClaimLease) == VACANT_TRIES


class Stop(Exception):
    """The test has seen enough."""


def limited(answer: Callable[[Step], Answer | None], count: int) -> Callable[[Step], Answer | None]:
    left = [count]

    def answer_some(step: Step) -> Answer | None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop
        return answer(step)

    return answer_some


def test_looks_that_fail_are_repeated_and_the_wait_goes_on() -> None:
    script = waiting(until(12))
    usual = script._answer

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Connect) and 103 < script.now < 109:
            return REFUSED
        if isinstance(step, Execute) and 102 < script.now < 103:
            return BROKEN
        return usual(step)

    script._answer = answer
    assert script.run(script.protocol.acquire()) is True
    assert script.now >= 112
    assert script.events == ["waiting", "taken"]


def test_a_wait_whose_last_look_failed_does_not_say_that_another_holds_it() -> None:
    script = waiting(until(1000))
    usual = script._answer
    script._answer = lambda step: (
        REFUSED
        if isinstance(step, Connect) and script.now > 105
        else (BROKEN if isinstance(step, Execute) and script.now > 104 else usual(step))
    )
    with pytest.raises(DatabaseUnavailableError, match="no lock within 30 s: too many connections"):
        script.run(script.protocol.acquire())
    assert 129 < script.now <= 132


def test_a_lost_claim_is_waited_for_too_and_in_vain_it_is_unknown() -> None:
    """The row that names the own owner expires, whoever's it is."""
    for ends, outcome in ((12, None), (1000, UnknownOutcomeError)):
        claims: list[Step] = []

        def row(now: int, claims: list[Step] = claims, ends: int = ends) -> tuple[str | None, int | None]:
            return ("host:1", NOW + ends * SECOND) if claims else (None, None)

        script = waiting(row)
        usual = script._answer

        def answer(step: Step, claims: list[Step] = claims, usual: Answering = usual) -> Answer | None:
            if isinstance(step, Execute) and isinstance(step.statement, ClaimLease):
                claims.append(step)
                if len(claims) == 1:
                    return Unanswered()
            return usual(step)

        script._answer = answer
        if outcome is None:
            assert script.run(script.protocol.acquire()) is True
        else:
            with pytest.raises(outcome):
                script.run(script.protocol.acquire())


def test_a_permanent_error_ends_a_wait_at_once() -> None:
    script = waiting(until(1000))
    usual = script._answer
    gone = Failed(Failure("the table is missing", permanent=True))
    script._answer = lambda step: gone if isinstance(step, Execute) and script.now > 105 else usual(step)
    with pytest.raises(ConfigurationError, match="the table is missing"):
        script.run(script.protocol.acquire())
    assert script.now < 107


@pytest.mark.parametrize("told_on", [Wait, Execute])
def test_leaving_ends_a_wait_at_once_and_says_nothing(told_on: type) -> None:
    script = waiting(until(1000))
    usual = script._answer

    def answer(step: Step) -> Answer | None:
        if script.now > 105 and isinstance(step, told_on):
            return (usual(step) or Done())._replace(leave=True)
        return usual(step)

    script._answer = answer
    assert script.run(script.protocol.acquire()) is False
    assert script.now < 107
    assert not script.warnings


def test_leaving_during_a_look_that_is_not_answered_leaves_nothing_in_doubt() -> None:
    script = waiting(until(1000))
    usual = script._answer
    script._answer = lambda step: (
        Unanswered(leave=True) if isinstance(step, Execute) and script.now > 105 else usual(step)
    )
    assert script.run(script.protocol.acquire()) is False
    assert not script.warnings


def test_a_slot_is_never_waited_for() -> None:
    ends = to_micros(SLOT.expires)
    script = Script(plan(slot=slot_plan(), lease=TERMS, wait=30.0), rows(NONE, Done((("other:7", ends, NOW),))))
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert type(caught.value) is LockNotAcquiredError
    assert script.now == 100


@pytest.mark.parametrize("held", [True, False])
def test_the_wait_ends_with_the_slot_that_was_taken_before_it_and_gives_it_back(held: bool) -> None:
    def row(now: int) -> tuple[str | None, int | None]:
        over = now >= to_micros(SLOT.expires)
        return ("other:7", now + 9 * SECOND) if held or not over else (None, None)

    script = waiting(row, HELD, slot=slot_plan(Hourly(), None), wait=9000.0)
    usual = script._answer

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute) and isinstance(step.statement, (ReadClock, ClaimSlot)):
            return Done(((NOW, "UTC"),)) if isinstance(step.statement, ReadClock) else HELD
        return Done(((1,),)) if isinstance(step, Execute) and isinstance(step.statement, GiveBackSlot) else usual(step)

    script._answer = answer
    kind = LockWaitEndedError if held else DatabaseUnavailableError
    with pytest.raises(kind, match="is over by the database's clock"):
        script.run(script.protocol.acquire())
    assert script.now == pytest.approx(100 + 3599, abs=0.01)
    assert isinstance(script.statements[-1], GiveBackSlot)


def test_a_row_that_ends_far_away_is_warned_of_when_the_wait_is_over() -> None:
    script = waiting(lambda now: ("other:7", NOW + 10**12), wait=3.0)
    with pytest.raises(LockWaitEndedError):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert "far beyond the TTL" in warning


def test_without_a_wait_the_claim_comes_first() -> None:
    script = Script(plan(lease=TERMS), rows(NONE, GONE, HELD))
    assert script.run(script.protocol.acquire()) is True
    assert [type(statement) for statement in script.statements] == [ClaimLease, Inspect, ClaimLease]
