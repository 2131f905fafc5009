"""Which job is not well."""

from __future__ import annotations

import pytest

from dislock.journal.overdue import CRITICAL, NO_ANSWER, OK, WARNING, Finding, overdue, summary, usual_seconds
from dislock.protocol.questions import RunRow
from tests.unit.journal.rows import DAY, HOUR, MINUTE, NOW, SECOND, at, failed, recent, run

#: The runs at three o'clock of the days before, and the one of today.
BEFORE = [run(at(f"{day} 03:00") + SECOND, 10 * MINUTE, tick=at(f"{day} 03:00")) for day in range(10, 20)]
TODAY = at("20 03:00")


def found(*runs: RunRow, now: int = NOW, late: float = 300.0, expected: tuple[str, ...] = ()) -> Finding:
    (finding,) = overdue(recent(*runs), now, late=late, expected=expected)
    return finding


def test_a_success_of_the_latest_tick_is_well() -> None:
    finding = found(*BEFORE, run(TODAY))
    assert (finding.level, finding.word) == (OK, "success")
    assert "host7" in finding.text


@pytest.mark.parametrize(("minutes", "level"), [(4, OK), (6, CRITICAL)])
def test_a_tick_is_due_a_while_after_its_time(minutes: int, level: int) -> None:
    assert found(*BEFORE, now=TODAY + minutes * MINUTE).level == level


def test_a_missed_tick_names_the_tick_and_the_last_run() -> None:
    finding = found(*BEFORE)
    assert (finding.level, finding.word) == (CRITICAL, "missed")
    assert finding.text.startswith("nothing ran for the tick 2026-01-20 03:00 UTC; ")
    assert finding.text.endswith("the last run began 2026-01-19 03:00:01 UTC on host7 (success)")


def test_ticks_are_those_of_the_zone() -> None:
    zoned = [
        each._replace(
            time_zone="America/New_York",
            tick=each.tick + 5 * HOUR,
            started=each.started + 5 * HOUR,
            ended=each.ended + 5 * HOUR,
        )
        for each in BEFORE
    ]  # type: ignore[operator] # they have all
    assert found(*zoned, now=at("20 08:04")).level == OK
    finding = found(*zoned, now=at("20 08:06"))
    assert "2026-01-20 03:00 America/New_York" in finding.text


def test_what_was_not_there_yet_missed_nothing() -> None:
    # Its first run was a try by hand, after the tick of that day.
    assert found(run(at("20 08:00"), tick=None)).level == OK


@pytest.mark.parametrize(
    ("row", "word", "verb"),
    [
        (failed(TODAY, 3), "exit 3", "began"),
        (run(TODAY, outcome="lost", exit_code=75), "lost", "began"),
        (run(TODAY, outcome="not started", exit_code=127), "not found", "could not start at"),
        (run(TODAY, None), "died", "began"),
    ],
)
def test_a_bad_end_is_critical(row: RunRow, word: str, verb: str) -> None:
    finding = found(*BEFORE, row)
    assert (finding.level, finding.word) == (CRITICAL, word)
    assert f"of the tick 2026-01-20 03:00 UTC {verb} 2026-01-20 03:00 UTC on host7" in finding.text


def test_a_success_after_a_failure_of_the_same_tick_is_well() -> None:
    assert found(failed(TODAY), run(TODAY + HOUR, tick=TODAY)).level == OK


def test_a_failure_stays_while_the_next_try_runs() -> None:
    again = run(TODAY + HOUR, None, tick=TODAY, live=True)
    assert found(*BEFORE, failed(TODAY), again).level == CRITICAL


def test_a_run_as_usual_is_well_also_when_it_takes_long() -> None:
    running = run(TODAY, None, live=True)
    assert found(*BEFORE, running, now=TODAY + 29 * MINUTE).level == OK
    finding = found(*BEFORE, running, now=TODAY + 31 * MINUTE)
    assert (finding.level, finding.word) == (WARNING, "long")
    assert "31m 00s" in finding.text
    assert "10m 00s is usual" in finding.text


def test_short_jobs_have_ten_minutes() -> None:
    before = [run(each.started, SECOND, tick=each.tick) for each in BEFORE]
    running = run(TODAY, None, live=True)
    assert found(*before, running, now=TODAY + 9 * MINUTE).level == OK
    assert found(*before, running, now=TODAY + 11 * MINUTE).level == WARNING


def test_without_a_success_nothing_is_known_to_take_long() -> None:
    assert found(run(TODAY, None, live=True), now=TODAY + 20 * HOUR).level == OK


def test_with_a_slot_alone_a_run_without_an_end_may_go_on() -> None:
    running = run(TODAY, None, strategy="schedule")
    assert found(*BEFORE, running, now=TODAY + 29 * MINUTE).level == OK
    finding = found(*BEFORE, running, now=TODAY + HOUR)
    assert (finding.level, finding.word) == (WARNING, "long")
    assert "no end recorded" in finding.text


@pytest.mark.parametrize("still", [True, False])
def test_a_tick_that_found_the_lease_held_is_a_warning(still: bool) -> None:
    yesterday = run(at("19 03:00"), None, live=True) if still else run(at("19 03:00"), DAY + MINUTE)
    finding = found(*BEFORE[:-1], yesterday)
    assert (finding.level, finding.word) == (WARNING, "held up")
    assert "the run of 2026-01-19 03:00 UTC on host7 held the lease" in finding.text


def test_a_tick_that_came_while_a_run_of_a_slot_alone_went_on_was_missed() -> None:
    assert found(run(at("19 03:00"), None, strategy="schedule")).word == "missed"


def test_a_lease_alone_has_no_ticks() -> None:
    lease = {"strategy": "lease", "schedule": None, "time_zone": None, "tick": None}
    assert found(run(at("10 03:00"), **lease)).level == OK
    assert found(failed(at("10 03:00"), **lease)).level == CRITICAL


def test_a_schedule_that_cannot_be_read_is_a_warning_and_hides_no_other_job() -> None:
    bad = run(TODAY, key="bad", schedule="61 * * * *")
    findings = overdue(recent(bad, run(TODAY)), NOW, late=300.0)
    assert [(each.key, each.level) for each in findings] == [("bad", WARNING), ("report", OK)]


def test_expected_keys_that_never_ran_are_critical() -> None:
    findings = overdue(recent(run(TODAY)), NOW, late=300.0, expected=("report", "backup", "backup"))
    assert [(each.key, each.level, each.word) for each in findings] == [
        ("backup", CRITICAL, "never ran"), ("report", OK, "success"),
    ]  # fmt: skip


def test_the_worst_comes_first() -> None:
    rows = recent(
        run(TODAY, key="a"),
        failed(TODAY, key="b"),
        *[each._replace(key="c") for each in BEFORE],
        run(TODAY, None, key="c", live=True),
    )
    findings = overdue(rows, NOW, late=300.0)
    assert [(each.key, each.level) for each in findings] == [("b", CRITICAL), ("c", WARNING), ("a", OK)]
    assert summary(findings) == (CRITICAL, "DISLOCK CRITICAL - 2 of 3 jobs not well: b (exit 1), c (long)")
    assert summary(findings[1:]) == (WARNING, "DISLOCK WARNING - 1 of 2 jobs not well: c (long)")
    assert summary(findings[2:]) == (OK, "DISLOCK OK - 1 job well")
    level, line = summary([])
    assert (level, line.split(" - ")[0]) == (NO_ANSWER, "DISLOCK UNKNOWN")


def test_the_median_is_of_the_newest_ten_successes() -> None:
    runs = [run(at("01 03:00") + number * HOUR, (number + 1) * SECOND) for number in range(20)]
    assert usual_seconds(runs) == 15.5
    assert usual_seconds([failed(TODAY)]) is None
