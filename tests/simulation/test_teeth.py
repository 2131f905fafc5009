"""A simulation that finds nothing proves nothing: with one rule broken, it must find that."""

from __future__ import annotations

import pytest

from tests.simulation.doubles import BROKEN_FOR_AN_INVARIANT, DOUBLES
from tests.simulation.hunting import replay, run_many

#: Histories in which a broken rule must show.
WITHIN = 6000


@pytest.mark.parametrize("broken", DOUBLES)
def test_a_broken_rule_is_caught(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, failure = run_many(0, WITHIN, broken)
    assert failure, f"{WITHIN} histories passed with a broken rule"
    assert DOUBLES[broken].caught_by in failure
    # The line is enough to see it again.
    seed = int(failure.split()[3])
    assert failure.split()[:3] == ["python", "-m", "tests.simulation"]
    assert replay(seed, broken) == failure
    assert "process 0" in capsys.readouterr().out


def test_every_invariant_has_a_rule_that_breaks_it() -> None:
    invariants = {
        "one start per slot",
        "past its expiry",
        "another's row",
        "fencing",
        "every loss is reported",
        "somebody gets the lock",
        "refusals are true",
        "one success per tick",
        "sealed for good",
        "waiters are served",
        "nothing local is relied on",
    }
    assert {double.caught_by for double in BROKEN_FOR_AN_INVARIANT.values()} == invariants
    assert {double.caught_by for double in DOUBLES.values()} == invariants | {"leaving"}
