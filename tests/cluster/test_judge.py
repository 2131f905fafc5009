"""What a report of failovers must not pass over, in forged records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.cluster.crowd import LONG_TTL, OWN, Lane
from tests.cluster.failover import Report, judge
from tests.faults.ledger.record import Wrapper

REMOVED = "dislock: error: the lease was lost: its row was removed from the table\n"
BY_FAILOVER = (
    "dislock: error: the lease was lost: its row still names this process, but its end was moved to "
    "2026-12-01 03:00:00+00:00: by --release, by hand, or by a failover that lost the last renewals\n"
)


class Records:
    """One lane, and what its wrappers and commands left."""

    def __init__(self, folder: Path, key: str) -> None:
        self.lane = Lane(key, folder / key, LONG_TTL)

    def ran(self, number: int, start: float, end: float, code: int = OWN, err: str = "", tick: str = "") -> None:
        owner = f"host:{number}"
        entry = Wrapper(owner, start, wanted=0 if tick else OWN, ended=end, code=code, err=err)
        with (self.lane.folder / "wrappers").open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")
        last = "alive" if code == 75 else "end"
        lines = f"start {start} {number} {owner} {tick}\n{last} {end} {number} {owner} {tick}\n"
        (self.lane.folder / f"command-{number}-{number}").write_text(lines)

    def judged(self, outage: float = 20.0, *, forgetful: bool = False) -> Report:
        return judge("SIGKILL", {"two hosts": outage}, [self.lane], forgetful=forgetful)


def test_one_that_holds_through_a_failover_is_well(tmp_path: Path) -> None:
    records = Records(tmp_path, "steady-0")
    records.ran(1, 0, 60)
    report = records.judged()
    assert (report.violations, report.counts["held on"], report.counts["held, lost"]) == ([], 1, 0)


def test_a_loss_with_a_ttl_above_the_outage_is_a_violation(tmp_path: Path) -> None:
    records = Records(tmp_path, "steady-0")
    records.ran(1, 0, 40, 75, "dislock: error: the lease was lost: no renewal was confirmed in time\n")
    assert "above the outage" in records.judged().violations[0]
    assert records.judged(outage=58.0).violations == []


def test_one_tick_that_succeeds_twice_is_a_violation(tmp_path: Path) -> None:
    records = Records(tmp_path, "ticks")
    records.ran(1, 0, 1, 0, tick="03:00")
    records.ran(2, 2, 3, 0, tick="03:05")
    assert records.judged().violations == []
    records.ran(3, 4, 5, 0, tick="03:05")
    assert "succeeded twice" in records.judged().violations[0]


@pytest.mark.parametrize(("err", "times"), [(REMOVED, 1), (BY_FAILOVER, 0)])
def test_an_overlap_that_a_server_has_forgotten_is_revealed_by_its_tokens(tmp_path: Path, err: str, times: int) -> None:
    records = Records(tmp_path, "late-0")
    records.ran(1, 0, 10, 75, err)
    records.ran(2, 9, 12)
    report = records.judged(forgetful=True)
    assert (report.violations, len(report.revealed), report.counts["forgotten"]) == ([], 1, times)
    assert "two at one time" in records.judged().violations[0]


def test_an_overlap_whose_token_does_not_rise_is_a_violation_of_any_server(tmp_path: Path) -> None:
    records = Records(tmp_path, "late-0")
    records.ran(2, 0, 10, 75, REMOVED)
    records.ran(1, 9, 12)
    assert "two at one time" in records.judged(forgetful=True).violations[0]
