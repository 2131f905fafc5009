"""The clock by which every deadline is kept."""

from __future__ import annotations

import time

import pytest

from dislock.drivers.clock import clock


def test_time_is_counted_on_a_clock_that_runs_on_in_a_suspended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {7: 123.0}.__getitem__, raising=False)
    assert clock() == 123.0


def test_where_there_is_no_such_clock_it_is_one_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 321.0)
    assert clock() == 321.0
