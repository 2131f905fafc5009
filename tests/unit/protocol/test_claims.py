"""What a claim that did not get its row means, and what is said of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dislock import (
    DatabaseUnavailableError,
    LockNotAcquiredError,
)
from dislock.protocol.statements import ClaimSlot, Inspect, ReadClock, to_micros
from dislock.protocol.steps import Answer, Done, Execute, Step
from tests.unit.protocol.test_acquisition import (
    BROKEN,
    HELD,
    NONE,
    NOW,
    SLOT,
    T0,
    TERMS,
    Hourly,
    Script,
    plan,
    rows,
    slot_plan,
)


def test_a_row_of_another_schedule_is_told_with_both_times_and_how_to_free_it() -> None:
    ends = to_micros(T0 + timedelta(days=40))
    script = Script(plan(slot=slot_plan()), rows(NONE, Done((("other:7", ends, NOW),))))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert str(T0 + timedelta(days=40)) in warning
    assert str(SLOT.expires) in warning
    assert "cronjob-lock:schedule:k" in warning
    assert "dislock --release k --slot URL_VARIABLE frees it" in warning


def test_a_slot_that_could_not_be_given_back_is_told_with_its_end_and_how_to_free_it() -> None:
    held_by_other = Done((("other:7", NOW + 9, NOW),))
    script = Script(plan(slot=slot_plan(), lease=TERMS), rows(HELD, NONE, held_by_other, BROKEN))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert str(SLOT.expires) in warning
    assert "cronjob-lock:schedule:k" in warning
    assert "dislock --release k --slot URL_VARIABLE frees it" in warning


def test_a_slot_that_ended_on_the_way_gives_way_to_the_current_one() -> None:
    """Nobody had it, so nobody holds anything: that must not be told as held by another."""
    later = to_micros(SLOT.expires) + 1
    clocks = Done(((NOW, "UTC"),)), Done(((later, "UTC"),))
    script = Script(
        plan(slot=slot_plan(Hourly(), None)), rows(clocks[0], NONE, Done(((None, None, later),)), clocks[1], HELD)
    )
    assert script.run(script.protocol.acquire()) is True
    first, second = (statement for statement in script.statements if isinstance(statement, ClaimSlot))
    assert (first.expires, second.tick) == (to_micros(SLOT.expires), to_micros(SLOT.expires))


def test_a_slot_that_was_anothers_and_ended_on_the_way_is_a_plain_refusal() -> None:
    ends = to_micros(SLOT.expires)
    script = Script(
        plan(slot=slot_plan(Hourly(), None)), rows(Done(((NOW, "UTC"),)), NONE, Done((("other:7", ends, ends + 1),)))
    )
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert type(caught.value) is LockNotAcquiredError


def test_slots_that_always_end_on_the_way_are_given_up_in_time() -> None:
    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        script.now += 3
        told = NOW + round((script.now - 100) * 3600) * 1_000_000
        return (
            Done(((told, "UTC"),))
            if isinstance(step.statement, ReadClock)
            else (Done(((None, None, told),)) if isinstance(step.statement, Inspect) else NONE)
        )

    script = Script(plan(slot=slot_plan(Hourly(), None)), answer)
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())
    assert script.now < 100 + 10 + 3 * 3


def test_a_slot_that_is_not_shown_to_be_held_is_not_told_as_held() -> None:
    script = Script(plan(slot=slot_plan()), rows(NONE, *[BROKEN] * 100))
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())


def test_a_claim_in_doubt_is_told_also_to_whoever_wants_to_leave() -> None:
    script = Script(plan(lease=TERMS), rows(BROKEN._replace(leave=True)))
    assert script.run(script.protocol.acquire()) is False
    (warning,) = script.warnings
    assert "unknown" in warning


@pytest.mark.parametrize(("vacant", "taken"), [(1, True), (2, True), (3, False)])
def test_a_slot_that_nobody_holds_is_claimed_three_times(vacant: int, taken: bool) -> None:
    nobody = Done(((None, None, NOW),))
    script = Script(plan(slot=slot_plan()), rows(*[NONE, nobody] * vacant, HELD))
    if taken:
        assert script.run(script.protocol.acquire()) is True
    else:
        with pytest.raises(DatabaseUnavailableError):
            script.run(script.protocol.acquire())
    claims = [statement for statement in script.statements if isinstance(statement, ClaimSlot)]
    assert len(claims) == (vacant + 1 if taken else 3)


@pytest.mark.parametrize(
    ("behind", "warning"),
    # The database read its clock when it was asked, when it answered, or is really off by three seconds.
    [(4.0, ""), (0.0, ""), (7.0, "5.0 s ahead of"), (-3.0, "5.0 s behind")],
)
def test_a_slow_answer_is_not_taken_for_a_wrong_clock(behind: float, warning: str) -> None:
    wall = T0.timestamp() + 1
    told = round((wall - behind) * 1_000_000)

    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        if isinstance(step.statement, ReadClock):
            script.now += 4
            return Done(((told, "UTC"),))
        return HELD

    script = Script(plan(slot=slot_plan(Hourly(), None)._replace(tolerance=1.0)), answer)
    assert script.run(script.protocol.acquire()) is True
    assert [warning in text for text in script.warnings] == [True] * bool(warning)
