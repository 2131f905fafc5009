"""Asking again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dislock import (
    DatabaseUnavailableError,
)
from dislock.protocol.steps import Connect, Wait
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
