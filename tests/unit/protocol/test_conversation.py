"""Asking again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dislock import (
    DatabaseUnavailableError,
)
from dislock.protocol.steps import HAD_TO_WAIT, Answer, Connect, Done, Execute, Failed, Failure, Step, Wait
from tests.unit.protocol.test_acquisition import (
    REFUSED,
    TERMS,
    Script,
    plan,
)


def test_hosts_that_failed_together_do_not_come_back_together() -> None:
    def pauses(chance: float) -> list[float]:
        script = Script(plan(lease=TERMS), lambda step: REFUSED if isinstance(step, Connect) else None, chance)
        with pytest.raises(DatabaseUnavailableError):
            script.run(script.protocol.acquire())
        begins = [step.until for step in script.steps if isinstance(step, Wait)]
        return [after - before for before, after in pairwise(begins)]

    low, high = pauses(0.0), pauses(0.999)
    assert low[0] * 2 < high[0]
    # It backs off, but not without end.
    assert low[0] < low[1] < low[2]
    assert max(high) <= 1.5


def test_pauses_are_doubled_up_to_a_second() -> None:
    script = Script(plan(lease=TERMS), lambda step: REFUSED if isinstance(step, Connect) else None)
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())
    begins = [step.until for step in script.steps if isinstance(step, Wait)]
    pauses = [after - before for before, after in pairwise(begins)]
    assert pauses[:6] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0])


def test_leaving_between_two_tries_is_heard() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Connect):
            return REFUSED
        return Done(leave=True) if isinstance(step, Wait) and step.until > 100 else None

    script = Script(plan(lease=TERMS), answer)
    assert script.run(script.protocol.acquire()) is False


@pytest.mark.parametrize("lasts", [5.0, 7.4, 7.6])
def test_what_had_to_wait_until_it_was_cancelled_is_not_tried_again_with_little_time(lasts: float) -> None:
    """Its next cancellation might come too late: it would be carried out for nobody."""

    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        script.now += lasts
        return Failed(Failure(HAD_TO_WAIT))

    script = Script(plan(lease=TERMS), answer)
    with pytest.raises(DatabaseUnavailableError, match="had to wait too long"):
        script.run(script.protocol.acquire())
    assert (len(script.statements) > 1) == (lasts < 7.5)
