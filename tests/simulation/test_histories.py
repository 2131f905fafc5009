"""Thousands of histories in which nothing may be lost and nobody may run twice."""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.hunting import run_many

#: How many histories the tests run, and the seed of the first.
COUNT = int(os.environ.get("SIMULATION_HISTORIES", "2000"))
FIRST = int(os.environ.get("SIMULATION_FIRST_SEED", "0"))


def test_no_history_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.process_time()
    stats, failure = run_many(FIRST, COUNT)
    with capsys.disabled():
        print(f"\n{stats.summary()}\n{time.process_time() - begun:.1f} s of processor time")
    assert not failure, f"replay with: {failure}"
    assert stats.histories == COUNT
    assert stats.faults
    # Every way for a lease to be lost was gone, and every fault there is was met.
    if COUNT >= 1000:
        assert len(stats.losses) == 4
        assert min(stats.faults.values()) > 0


def test_a_seed_replays_the_same_history() -> None:
    first, second = run_many(17, 60), run_many(17, 60)
    assert first == second
    assert first[0] != run_many(18, 60)[0]
