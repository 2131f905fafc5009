"""Losing a lease: decided once, reported once, and told to whoever asked to be."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dislock.errors import LeaseLostError, LossReason, NotSealedError
from dislock.protocol.acquisition import LEAVE_SECONDS, REPORT_PAUSE
from dislock.protocol.steps import LINGER, Done, Execute, Unanswered, Wait
from tests.unit.protocol.test_acquisition import BROKEN, HELD, NOW, REFUSED, TERMS, Script, plan, rows

TAKEN = Done(((NOW, 0, "other:7", NOW + 1),))


def holding(*answers: Any, **changes: Any) -> Script:
    """A script that holds its lease; ``answers`` are those to what comes after."""
    script = Script(plan(lease=TERMS, **changes), rows(HELD, *answers))
    assert script.run(script.protocol.acquire()) is True
    script.events.clear()
    script.said.clear()
    return script


def test_leaving_takes_five_seconds_with_a_statement_in_flight() -> None:
    assert (LEAVE_SECONDS, LINGER) == (4, 1)


def test_a_renewal_that_keeps_failing_is_reported_once_a_minute() -> None:
    assert REPORT_PAUSE == 60


@pytest.mark.parametrize(
    ("changes", "level", "noticed_in_time", "noticed_late"),
    [
        ({}, logging.ERROR, "", ""),
        ({"supervised": True}, logging.ERROR, "the command is stopped", "the command had ended by then"),
        ({"continues": True}, logging.WARNING, "the work goes on without it", ""),
        ({"supervised": True, "continues": True}, logging.WARNING, "the work goes on without it", ""),
    ],
)
def test_a_loss_is_one_line_that_says_what_comes_of_it(
    changes: dict[str, bool], level: int, noticed_in_time: str, noticed_late: str
) -> None:
    sentence = "the lease cronjob-lock:lease:k was lost: its row was changed by others and now names other:7, until "
    for late, consequence in ((False, noticed_in_time), (True, noticed_late)):
        script = holding(TAKEN, **changes)
        loss = script.run(script.protocol.release() if late else script.protocol.keep())
        assert loss is not None
        assert loss is script.protocol.loss
        assert script.events.count("lost") == 1
        told, text = script.said[-1]
        assert told == level
        assert text.startswith(sentence)
        assert text.removeprefix(loss.sentence).partition(", but")[0] == (f"; {consequence}" if consequence else "")


def test_a_row_that_others_ended_is_not_said_to_be_taken() -> None:
    """After --release the row still names this process: nobody has taken it."""
    script = holding(Done(((NOW, 0, TERMS.owner, NOW),)))
    loss = script.run(script.protocol.keep())
    assert loss is not None
    assert loss.reason is LossReason.TAKEN
    assert "its row still names this process, but its end was moved to " in loss.sentence
    assert "by --release" in loss.sentence


def test_the_first_loss_counts_and_is_told_once() -> None:
    script, heard = holding(TAKEN), []
    script.protocol.on_loss(heard.append)
    script.run(script.protocol.keep())
    first = script.protocol.loss
    assert first is not None
    assert first.reason is LossReason.TAKEN
    script.protocol.fail("its renewal failed")
    assert script.run(script.protocol.release()) is first
    assert (heard, script.events.count("lost")) == ([first], 1)
    # Whoever asks later hears the same.
    script.protocol.on_loss(heard.append)
    assert heard == [first, first]


def test_a_lease_whose_time_is_up_is_lost_for_whoever_asks_before_anybody_looked() -> None:
    script, heard = holding(), []
    script.now += TERMS.ttl
    script.protocol.on_loss(heard.append)
    assert [loss.reason for loss in heard] == [LossReason.UNCONFIRMED]
    assert script.protocol.loss is heard[0]


def test_a_fault_of_this_process_is_a_loss_while_the_lease_is_held_and_not_after() -> None:
    script = holding()
    script.protocol.fail("its renewal failed: no memory")
    assert script.protocol.loss is not None
    assert "no memory" in script.protocol.loss.sentence
    assert script.protocol.loss.grace == 0
    freed = holding()
    freed.run(freed.protocol.release())
    freed.protocol.fail("its renewal failed: no memory")
    assert freed.protocol.loss is None


@pytest.mark.parametrize("continues", [False, True])
def test_success_on_a_lost_lease_is_an_error_unless_the_work_is_to_go_on(continues: bool) -> None:
    script = holding(continues=continues)
    script.protocol.check()
    script.protocol.fail("its renewal failed")
    # What the block raised is never masked.
    script.protocol.check(ZeroDivisionError())
    if continues:
        script.protocol.check()
        return
    with pytest.raises(LeaseLostError) as caught:
        script.protocol.check()
    assert caught.value.loss is script.protocol.loss


@pytest.mark.parametrize("sealed", [None, True, False])
def test_success_without_its_seal_is_an_error(sealed: bool | None) -> None:
    script = holding()
    script.protocol.sealed = sealed
    if sealed is not False:
        script.protocol.check()
        return
    with pytest.raises(NotSealedError):
        script.protocol.check()
    script.protocol.check(ZeroDivisionError())


def test_a_renewal_that_keeps_failing_is_reported_at_once_then_after_each_pause_and_when_it_has_recovered() -> None:
    terms = TERMS._replace(ttl=3600.0)
    script = Script(plan(lease=terms), rows(HELD))
    script.run(script.protocol.acquire())
    begun, told = script.now, []
    report = script.protocol._report

    def noting(event: Any) -> None:
        told.append((event.name, script.now - begun))
        if event.name == "renewal failed":
            assert event.fields["failing_seconds"] == round(script.now - begun - told[0][1], 3)
        report(event)

    script.protocol._report = noting
    tries = 0

    def answer(step: Any) -> Any:
        nonlocal tries
        if isinstance(step, Execute):
            tries += 1
            if script.now - begun < 2.5 * REPORT_PAUSE:
                return REFUSED
        if isinstance(step, Wait) and [name for name, _ in told].count("renewed") == 2:
            return Done(leave=True)
        return Done(((NOW, 1, "host:1", NOW),)) if isinstance(step, Execute) else None

    script._answer = answer
    assert script.run(script.protocol.keep()) is None
    names = [name for name, _ in told]
    assert names == ["renewal failed"] * 3 + ["renewal recovered", "renewed", "renewed"]
    first, second, third = (moment for name, moment in told if name == "renewal failed")
    assert first == pytest.approx(terms.pause)
    for pause in (second - first, third - second):
        assert REPORT_PAUSE <= pause <= REPORT_PAUSE + terms.pause
    assert tries > len(told)
    (recovered,) = (text for _, text in script.said if "renewed again" in text)
    assert recovered.endswith(f"after {told[3][1] - first:.0f} s")


def test_a_renewal_that_finds_a_loss_is_not_told_as_a_renewal() -> None:
    script = holding(REFUSED, TAKEN)
    assert script.run(script.protocol.keep()) is not None
    assert script.events == ["renewal failed", "lost"]


def test_a_lease_that_could_not_be_freed_is_a_warning_and_no_loss() -> None:
    script = holding()
    script._answer = lambda step: Unanswered() if isinstance(step, Execute) else None
    assert script.run(script.protocol.release()) is None
    ((level, text),) = script.said
    assert level == logging.WARNING
    assert "expires within 60 s" in text


@pytest.mark.parametrize("row", [TAKEN, Done(((NOW, 0, None, None),))])
def test_a_row_that_another_run_took_after_a_lost_release_is_no_loss(row: Done) -> None:
    script = holding(BROKEN, row, supervised=True)
    assert script.run(script.protocol.release(succeeded=True)) is None
    assert script.events == ["release failed"]
    assert not script.protocol.void
    # Held too long, it may have been taken before.
    late = holding(BROKEN, row, supervised=True)
    late.now += TERMS.ttl
    assert late.run(late.protocol.release(succeeded=True)) is not None
    assert late.protocol.void
