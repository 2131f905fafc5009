"""What a run says to its journal, and what the journal's trouble means for the lock: nothing."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dislock.errors import LEASE_LOST_EXIT_CODE
from dislock.protocol.plan import JournalPlan
from dislock.protocol.records import CleanRuns, EndRun, StartRun
from dislock.protocol.schedule import Schedule
from dislock.protocol.statements import ClaimLease, ClaimSlot, MoveExpiry, ReadClock, to_micros
from dislock.protocol.steps import Answer, Close, Connect, Done, Execute, Failed, Failure, Step, Unanswered, Wait
from tests.unit.protocol.test_acquisition import HELD, NOW, SLOT, T0, TERMS, Script, plan, slot_plan

JOURNAL = JournalPlan(("runs",), 90, "k", "schedule,lease", "@hourly", "run.sh 0a1b2c")
OURS = (StartRun, EndRun, CleanRuns)


def answers(**more: Answer) -> Any:
    """Answers each statement by its kind: all is well, unless ``more`` has another answer for it."""
    usual: dict[str, Answer] = {
        "ClaimSlot": HELD,
        "ClaimLease": HELD,
        "MoveExpiry": Done(((NOW + 1, 1, "host:1", NOW),)),
        "GiveBackSlot": Done(((1,),)),
        "StartRun": Done(((7,),)),
        "EndRun": Done(()),
        "CleanRuns": Done(()),
        **more,
    }

    def answer(step: Step) -> Answer | None:
        return usual[type(step.statement).__name__] if isinstance(step, Execute) else None

    return answer


def recorded(script: Script) -> list[Any]:
    return [statement for statement in script.statements if isinstance(statement, OURS)]


def acquired(script: Script, **end: Any) -> Script:
    """Taken, told to leave at the first wait of the renewals, and freed."""
    assert script.run(script.protocol.acquire())
    script.run(script.protocol.keep()) if script.protocol.lease is None else leave_at_once(script)
    script.run(script.protocol.release(**end))
    return script


def leave_at_once(script: Script) -> None:
    answer = script._answer
    script._answer = lambda step: Done(leave=True) if isinstance(step, Wait) else answer(step)
    script.run(script.protocol.keep())
    script._answer = answer


def test_the_start_is_recorded_after_the_locks_and_the_end_after_the_lease_is_free() -> None:
    script = Script(plan(slot=slot_plan(), lease=TERMS, journal=JOURNAL), answers())
    acquired(script, succeeded=True, exit_code=0)
    kinds = [type(statement) for statement in script.statements]
    assert kinds == [ClaimSlot, ClaimLease, StartRun, MoveExpiry, EndRun, CleanRuns]
    start, end, clean = recorded(script)
    assert start == StartRun("k", "schedule,lease", "@hourly", None, to_micros(T0), "host:1", NOW, "run.sh 0a1b2c")
    assert end[: len(start)] == start
    assert (end.exit_code, end.outcome) == (0, "success")
    assert clean == CleanRuns("k", 90)
    # On the connection that is open anyway.
    assert sum(isinstance(step, Connect) for step in script.steps) == 1
    assert {
        step.journal for step in script.steps if isinstance(step, Execute) and isinstance(step.statement, OURS)
    } == {("runs",)}
    assert isinstance(script.steps[-1], Close)


def test_without_a_journal_nothing_is_said_of_one() -> None:
    script = acquired(Script(plan(slot=slot_plan(), lease=TERMS), answers()), succeeded=True, exit_code=0)
    assert recorded(script) == []


def test_a_slot_alone_lets_its_connection_go_when_the_start_is_recorded() -> None:
    script = acquired(Script(plan(slot=slot_plan(), journal=JOURNAL), answers()), exit_code=4)
    kinds = [type(step) if not isinstance(step, Execute) else type(step.statement) for step in script.steps]
    assert kinds == [Wait, Connect, ClaimSlot, StartRun, Close, Connect, EndRun, CleanRuns, Close]
    assert recorded(script)[1].outcome == "failure"


@pytest.mark.parametrize(
    ("end", "outcome", "code"),
    [
        ({"succeeded": True, "exit_code": 0}, "success", 0),
        ({"exit_code": 3}, "failure", 3),
        ({"exit_code": None}, "failure", None),
        ({"started": False, "exit_code": 127}, "not started", 127),
    ],
)
def test_outcomes(end: dict[str, Any], outcome: str, code: int | None) -> None:
    script = acquired(Script(plan(slot=slot_plan(), lease=TERMS, journal=JOURNAL), answers()), **end)
    _, row, _ = recorded(script)
    assert (row.outcome, row.exit_code) == (outcome, code)
    # Also of a slot that was given back.
    assert row.tick == to_micros(T0)


@pytest.mark.parametrize(("continues", "code"), [(False, 75), (True, 0)])
def test_a_lost_lease_is_lost_whatever_the_command_did(continues: bool, code: int) -> None:
    gone = Done(((NOW, 0, None, None),))
    script = Script(plan(lease=TERMS, journal=JOURNAL, continues=continues), answers(MoveExpiry=gone))
    acquired(script, succeeded=True, exit_code=0)
    assert (recorded(script)[1].outcome, recorded(script)[1].exit_code) == ("lost", code)


@pytest.mark.parametrize("continues", [False, True])
def test_a_success_whose_slot_is_not_sealed_is_recorded_with_the_exit_code_that_it_gets(continues: bool) -> None:
    slot = slot_plan()._replace(by_success=True)
    free, gone = Done(((None, None, NOW),)), Done(((NOW, 0, None, None, 0, None, None),))
    asked = plan(slot=slot, lease=TERMS, journal=JOURNAL, continues=continues)
    script = acquired(Script(asked, answers(Inspect=free, FreeAndSeal=gone)), succeeded=True, exit_code=0)
    assert (recorded(script)[1].outcome, recorded(script)[1].exit_code) == ("lost", LEASE_LOST_EXIT_CODE)
    assert script.protocol.void


def test_a_success_whose_slot_is_sealed_is_a_success() -> None:
    slot = slot_plan()._replace(by_success=True)
    free, sealed = Done(((None, None, NOW),)), Done(((NOW, 1, "host:1", NOW, 1, None, None),))
    asked = plan(slot=slot, lease=TERMS, journal=JOURNAL)
    script = acquired(Script(asked, answers(Inspect=free, FreeAndSeal=sealed)), succeeded=True, exit_code=0)
    assert (recorded(script)[1].outcome, recorded(script)[1].exit_code) == ("success", 0)


def test_what_was_refused_is_not_recorded() -> None:
    script = Script(plan(slot=slot_plan(), journal=JOURNAL), answers())
    answer = script._answer
    script._answer = lambda step: Done(leave=True) if isinstance(step, Wait) else answer(step)
    assert script.run(script.protocol.acquire()) is False
    assert recorded(script) == []


@pytest.mark.parametrize(
    "trouble",
    [Failed(Failure("no such table")), Failed(Failure("broken", broken=True)), Unanswered()],
    ids=["refused", "broken", "silent"],
)
def test_trouble_is_one_warning_and_the_lease_is_kept_and_freed(trouble: Answer) -> None:
    script = Script(plan(lease=TERMS, journal=JOURNAL), answers(StartRun=trouble, EndRun=trouble))
    acquired(script, succeeded=True, exit_code=0)
    assert len(script.warnings) == 1
    assert "the run is not recorded in the journal (" in script.warnings[0]
    assert script.protocol.loss is None
    assert "released" in script.events
    assert script.events.count("record failed") == 2
    assert [level for level, text in script.said if "is not recorded" in text] == [logging.WARNING, logging.INFO]
    # A connection that is gone, or that may still be busy with the journal, frees nothing.
    usable = isinstance(trouble, Failed) and not trouble.failure.broken
    assert sum(isinstance(step, Connect) for step in script.steps) == (1 if usable else 2)


def test_a_start_that_was_not_recorded_is_made_up_for_at_the_end() -> None:
    script = Script(plan(lease=TERMS, journal=JOURNAL), answers(StartRun=Failed(Failure("had to wait"))))
    assert script.run(script.protocol.acquire())
    leave_at_once(script)
    script.now += 30
    script.run(script.protocol.release(exit_code=0, succeeded=True))
    assert recorded(script)[1].took == 30_000_000


def test_the_end_is_recorded_once_however_often_the_locks_are_freed() -> None:
    script = acquired(Script(plan(lease=TERMS, journal=JOURNAL), answers()), exit_code=1)
    script.run(script.protocol.release(started=False))
    assert [type(statement) for statement in recorded(script)] == [StartRun, EndRun, CleanRuns]


def test_nothing_is_deleted_where_all_is_kept_or_nothing_was_written() -> None:
    for journal, more in ((JOURNAL._replace(keep_days=0), {}), (JOURNAL, {"EndRun": Failed(Failure("full"))})):
        script = acquired(Script(plan(lease=TERMS, journal=journal), answers(**more)), exit_code=1)
        assert [type(statement) for statement in recorded(script)] == [StartRun, EndRun]


def test_what_cannot_be_deleted_stays_in_silence() -> None:
    script = Script(plan(lease=TERMS, journal=JOURNAL), answers(CleanRuns=Failed(Failure("permission denied"))))
    acquired(script, exit_code=1)
    assert script.warnings == []
    assert script.events[-1] == "cleaning failed"


def test_the_end_and_the_deletion_have_two_seconds_together() -> None:
    script = acquired(Script(plan(lease=TERMS, journal=JOURNAL), answers()), exit_code=1)
    ends = [step.by for step in script.steps if isinstance(step, Execute) and isinstance(step.statement, OURS[1:])]
    assert ends == [script.now + 2] * 2
    assert "cleaning failed" not in script.events


@pytest.mark.parametrize(("expression", "zone"), [(None, None), ("@hourly", "Europe/Berlin")])
def test_the_zone_is_recorded_where_there_is_a_schedule(expression: str | None, zone: str | None) -> None:
    script = Script(plan(lease=TERMS, journal=JOURNAL._replace(schedule=expression)), answers())
    script.protocol.zone = "Europe/Berlin"
    acquired(script, exit_code=1)
    assert [statement.time_zone for statement in recorded(script)[:2]] == [zone] * 2


@pytest.mark.parametrize(("ttl", "longest"), [(60, 1.0), (1.5, 0.5)])
def test_the_journal_has_a_second_and_never_a_renewals_time(ttl: float, longest: float) -> None:
    terms = TERMS._replace(ttl=ttl, interval=ttl / 3)
    script = acquired(Script(plan(lease=terms, journal=JOURNAL), answers()), exit_code=0)
    (step,) = [step for step in script.steps if isinstance(step, Execute) and isinstance(step.statement, StartRun)]
    assert step.by - 100.0 == pytest.approx(longest)


# Ticks in the schedule's zone, and starts far from them


def started(at: datetime, *, zone: str | None, expression: str = "0 3 * * *") -> Script:
    now = to_micros(at)

    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        return (
            Done(((now, "UTC"),))
            if isinstance(step.statement, ReadClock)
            else Done(((now, now, "timestamp with time zone"),))
        )

    slot = slot_plan(Schedule(expression, zone), None)
    script = Script(plan(slot=slot, journal=JOURNAL), answer)
    # This host's clock is the database's, which is not what is tested here.
    script.protocol._wall = at.timestamp
    assert script.run(script.protocol.acquire())
    return script


@pytest.mark.parametrize(
    ("hours", "zone", "expression", "warned"),
    [
        (13, None, "0 3 * * *", True),
        (11, None, "0 3 * * *", False),
        (13, "UTC", "0 3 * * *", False),
        (0.2, None, "*/20 * * * *", False),
        (0.24, None, "*/20 * * * *", False),
        (0.26, None, "*/30 * * * *", True),
    ],
)
def test_a_start_far_from_its_tick_names_the_zones(
    hours: float, zone: str | None, expression: str, warned: bool
) -> None:
    script = started(
        datetime(2026, 1, 5, 3, tzinfo=timezone.utc) + timedelta(hours=hours), zone=zone, expression=expression
    )
    assert ("late start" in script.events) == warned
    if warned:
        assert script.fields["late start"]["late_seconds"] == hours * 3600
        (text,) = script.warnings
        assert "later than its tick, 2026-01-05 03:00:00+00:00" in text
        assert "the database session's zone (UTC) is used" in text
        assert "CRON_TZ" in text


def test_ticks_are_told_in_the_schedules_zone() -> None:
    script = started(datetime(2026, 1, 5, 8, tzinfo=timezone.utc), zone="Europe/Berlin")
    assert any("is taken until 2026-01-06 03:00:00+01:00" in text for _, text in script.said)
    assert script.protocol.zone == "Europe/Berlin"
    assert script.protocol.slot is not None
    # As a value it is in UTC.
    assert script.protocol.slot.expires.utcoffset() == timedelta(0)
    assert SLOT.shown(None) == "infinity"
