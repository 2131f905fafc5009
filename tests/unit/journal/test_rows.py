"""What one row of the journal means."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from dislock.journal.rows import clock, duration, ended, host, local, state, took
from dislock.protocol.questions import RunRow
from dislock.protocol.statements import NEVER
from tests.unit.journal.rows import MINUTE, NOW, SECOND, failed, run

OPEN = run(NOW - MINUTE, None)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (run(NOW), "success"),
        (failed(NOW), "failure"),
        (run(NOW, outcome="lost", exit_code=75), "lost"),
        (run(NOW, outcome="not started", exit_code=127), "not started"),
        (OPEN._replace(live=True), "running"),
        (OPEN, "died"),
        # The lease was freed in order; only the record of the end is missing.
        (OPEN._replace(freed=True), "unknown"),
        # The row of the lease is gone.
        (OPEN._replace(live=None, freed=None), "died"),
        (OPEN._replace(strategy="schedule"), "unknown"),
        (OPEN._replace(strategy="lease", live=True), "running"),
        (OPEN._replace(strategy="advisory", live=None, freed=None), "unknown"),
    ],
)
def test_how_a_run_stands(row: RunRow, word: str) -> None:
    assert state(row) == word


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (run(NOW), "success"),
        (failed(NOW, 3), "exit 3"),
        (failed(NOW, 137), "signal KILL"),
        (failed(NOW, 255), "signal 127"),
        # A function that raised has no exit code.
        (run(NOW, outcome="failure", exit_code=None), "failure"),
        (run(NOW, outcome="lost", exit_code=75), "lost"),
        (run(NOW, outcome="lost", exit_code=0), "lost, exit 0"),
        (run(NOW, outcome="not started", exit_code=127), "not found"),
        (run(NOW, outcome="not started", exit_code=126), "not executable"),
        (run(NOW, outcome="not started", exit_code=143), "not started"),
        (OPEN, "died"),
    ],
)
def test_how_it_ended(row: RunRow, text: str) -> None:
    assert ended(row) == text


@pytest.mark.parametrize(
    ("owner", "name"), [("host7:1", "host7"), ("a:b:1", "a:b"), ("worker", "worker"), ("a:b", "a:b")]
)
def test_the_host_of_an_owner(owner: str, name: str) -> None:
    assert host(owner) == name


def test_how_long_it_took() -> None:
    assert took(run(NOW, 90 * SECOND), NOW) == 90
    assert took(OPEN._replace(live=True), NOW) == 60
    assert took(OPEN, NOW) is None
    # The clock was set back meanwhile.
    assert took(run(NOW, -SECOND), NOW) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"), (9.94, "9.9s"), (59.4, "59s"), (60, "1m 00s"), (3599.4, "59m 59s"), (3599.9, "1h 00m"),
        (3661, "1h 01m"), (86399, "23h 59m"), (90000, "1d 01h"), (99 * 86400, "99d 00h"), (1e13, "forever"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_moments_are_in_the_zone_and_short_on_the_same_day() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert clock(NOW, berlin) == "01-20 10:00:00"
    assert clock(NOW, berlin, local(NOW - MINUTE, berlin)) == "10:00:00"
    assert clock(NOW, berlin, local(NOW - 11 * 60 * MINUTE, berlin)) == "01-20 10:00:00"
    assert clock(NEVER, berlin) == "never"
    assert local(NEVER, berlin) is None
