"""Histories in which programs hold several leases at once, over the connections of one hub."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation.checks import Violation
from tests.simulation.sharing import BROKEN, play
from tests.simulation.stats import Stats

#: How many histories, and in how many of them a broken rule must show.
COUNT, WITHIN = 500, 1500


@pytest.fixture(autouse=True)
def seldom_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_no_history_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    stats = Stats()
    for seed in range(COUNT):
        try:
            play(seed, stats)
        except AssertionError as error:
            pytest.fail(f"history {seed}: {error}")
    with capsys.disabled():
        print(f"\n{stats.summary()}")
    assert stats.faults


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_is_caught(broken: str) -> None:
    kind, caught_by = BROKEN[broken]
    for seed in range(WITHIN):
        try:
            play(seed, Stats(), kind)
        except Violation as violation:
            if violation.invariant == caught_by:
                return
        except AssertionError:
            # It may end in other ways too.
            continue
    pytest.fail(f"{WITHIN} histories passed with a broken rule")
