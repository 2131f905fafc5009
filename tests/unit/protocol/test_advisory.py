"""The rules of an advisory lock: which statements are sent, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from dislock.errors import DatabaseUnavailableError, LockNotAcquiredError, LockWaitEndedError, LossReason
from dislock.protocol.acquisition import LEAVE_SECONDS
from dislock.protocol.advisory import AdvisoryAcquisition
from dislock.protocol.advisory_statements import Begin, Commit, Holder, Outlast, Ping, Queue, SetTimeout, Try
from dislock.protocol.plan import AdvisoryPlan, Senses
from dislock.protocol.records import CleanRuns, EndRun
from dislock.protocol.steps import Answer, Close, Connect, Done, Execute, Failed, Failure, Wait, Watch
from tests.unit.protocol.test_acquisition import Script, plan, rows
from tests.unit.protocol.test_recording import JOURNAL

PRIMARY, STANDBY = Done(((False, 6),)), Done(((True, 6),))
FREE, TAKEN = Done(((True,),)), Done(((False,),))
BROKEN, TIMED_OUT = Failed(Failure("cut", broken=True)), Failed(Failure("timeout", timed_out=True))


def script(*answers: Answer, wait: float = 0.0, key: int = 7, **changes: Any) -> Script:
    asked = plan(advisory=AdvisoryPlan(key, "k", grace=9), wait=wait, supervised=True, **changes)
    made = Script(asked, rows(*answers))
    made.protocol = AdvisoryAcquisition(asked, Senses(lambda: made.now, lambda: 0.0, lambda: 0.5, made.report))
    return made


@pytest.mark.parametrize(
    ("wait", "answers", "kinds", "outcome"),
    [
        (0, [FREE], [], True),
        (0, [TAKEN, Done((("host:9",),))], [Holder], LockNotAcquiredError),
        # Nobody queues for a lock that is free.
        (5, [FREE], [], True),
        (5, [TAKEN, Done(), Done()], [SetTimeout, Queue], True),
        # Only a timeout proves that somebody still holds it.
        (5, [TAKEN, Done(), TIMED_OUT], [SetTimeout, Queue], LockWaitEndedError),
        (5, [TAKEN, Done(), BROKEN], [SetTimeout, Queue], DatabaseUnavailableError),
        (5, [TAKEN, BROKEN], [SetTimeout], DatabaseUnavailableError),
        (5, [TAKEN, Done(leave=True)], [SetTimeout], False),
        (5, [TAKEN, Done(), Done(leave=True)], [SetTimeout, Queue], False),
    ],
)
def test_taking_it(wait: float, answers: list[Answer], kinds: list[type], outcome: Any) -> None:
    taking = script(Done(), PRIMARY, *answers, wait=wait)
    if isinstance(outcome, bool):
        assert taking.run(taking.protocol.acquire()) is outcome
    else:
        with pytest.raises(outcome):
            taking.run(taking.protocol.acquire())
    assert [type(statement) for statement in taking.statements] == [Begin, Outlast, Try, *kinds]
    # The connection stays only where the lock is held, and the lock is reported only then.
    assert isinstance(taking.steps[-1], Close) == (outcome is not True)
    assert taking.protocol.can_be_lost == ("taken" in taking.events) == (outcome is True)


BEFORE = [Done(), PRIMARY, FREE]


@pytest.mark.parametrize("when", range(3))
def test_leaving_is_heard_with_each_statement(when: int) -> None:
    taking = script(*BEFORE[:when], BEFORE[when]._replace(leave=True), wait=5)
    assert taking.run(taking.protocol.acquire()) is False
    assert not taking.protocol.can_be_lost
    assert isinstance(taking.steps[-1], Close)


@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("answer", [BROKEN, Done(((False, 6),), doubt="unsure")])
def test_a_transaction_in_which_something_failed_does_not_go_on(when: int, answer: Answer) -> None:
    taking = script(*BEFORE[:when], answer, wait=5)
    with pytest.raises(DatabaseUnavailableError):
        taking.run(taking.protocol.acquire())
    assert not taking.protocol.can_be_lost
    assert isinstance(taking.steps[-1], Close)


def test_a_transaction_that_could_not_be_begun_is_begun_again() -> None:
    taking = script(BROKEN, *BEFORE)
    assert taking.run(taking.protocol.acquire()) is True


def test_a_server_that_cannot_be_reached_is_an_error() -> None:
    taking = script()
    taking._answer = lambda step: BROKEN if isinstance(step, Connect) else None
    with pytest.raises(DatabaseUnavailableError):
        taking.run(taking.protocol.acquire())
    assert taking.now <= 110


def test_each_statement_has_its_time() -> None:
    taking = script(Done(), PRIMARY, TAKEN, Done(), Done(), wait=5, delay=3)
    assert taking.run(taking.protocol.acquire())
    assert taking.steps[0] == Wait(103)
    executed = [step for step in taking.steps if isinstance(step, Execute)]
    assert [step.by for step in executed] == [113, 113, 113, 113, 103 + 5 + 2]
    assert executed[3].statement == SetTimeout(5000)
    # It only waits for somebody else's lock, so leaving can cancel it at once.
    assert [step.queues for step in executed] == [False] * 4 + [True]
    assert taking.fields["waiting"]["wait_seconds"] == 5
    taking.steps.clear()
    taking._answer = lambda step: Done(leave=True) if isinstance(step, Execute) else Done()
    taking.run(taking.protocol.keep())
    assert taking.steps == [Watch(103 + 15), Execute(Ping(), 103 + 10)]
    taking.run(taking.protocol.release())
    assert taking.steps[2:] == [Execute(Commit(), 103 + LEAVE_SECONDS), Close()]


def test_the_wait_is_at_least_a_millisecond_for_the_server() -> None:
    """0 would be no limit."""
    taking = script(Done(), PRIMARY, TAKEN, Done(), Done(), wait=0.0001)
    taking.run(taking.protocol.acquire())
    assert SetTimeout(1) in taking.statements


@pytest.mark.parametrize(
    ("key", "halves"), [(7, (0, 7)), (2**32 + 7, (1, 7)), (-1, (0xFFFFFFFF, 0xFFFFFFFF)), (-(2**63), (0x80000000, 0))]
)
def test_who_holds_it_is_asked_by_the_halves_of_its_key(key: int, halves: tuple[int, int]) -> None:
    taking = script(Done(), PRIMARY, TAKEN, Done(), key=key)
    with pytest.raises(LockNotAcquiredError, match="held by somebody else"):
        taking.run(taking.protocol.acquire())
    assert taking.statements[-1] == Holder(*halves)


def test_the_end_of_a_run_is_recorded_after_the_lock_is_free() -> None:
    taking = script(Done(), PRIMARY, FREE, Done(), Done(), Done(), Done(), journal=JOURNAL)
    assert taking.run(taking.protocol.acquire())
    taking.now += 30
    taking.run(taking.protocol.release(succeeded=True, exit_code=0))
    taking.run(taking.protocol.release(succeeded=True, exit_code=0))
    assert [type(statement) for statement in taking.statements[3:]] == [Commit, EndRun, CleanRuns]
    assert taking.statements[4].took == 30_000_000
    assert not taking.protocol.can_be_lost


def test_a_run_whose_lock_was_lost_is_recorded_over_a_new_connection() -> None:
    held = script(Done(), PRIMARY, FREE, Done(), Done(), Done(), journal=JOURNAL)
    assert held.run(held.protocol.acquire())
    held.protocol.fail("its watch failed")
    held.run(held.protocol.release(succeeded=True, exit_code=0))
    assert [type(statement) for statement in held.statements[3:]] == [EndRun, CleanRuns]
    assert sum(isinstance(step, Connect) for step in held.steps) == 2


def test_a_fault_of_this_process_is_a_loss_with_the_whole_grace() -> None:
    held = script(Done(), PRIMARY, FREE)
    assert held.run(held.protocol.acquire())
    held.protocol.fail("its watch failed")
    assert held.protocol.loss is not None
    assert held.protocol.loss.grace == 9


def test_no_lock_is_taken_on_a_standby_where_it_excludes_nobody() -> None:
    taking = script(Done(), STANDBY)
    with pytest.raises(DatabaseUnavailableError, match="standby"):
        taking.run(taking.protocol.acquire())
    assert taking.statements == [Begin(), Outlast()]
    assert isinstance(taking.steps[-1], Close)


@pytest.mark.parametrize(
    ("watched", "pinged", "lost"),
    [
        (Done(leave=True), Done(), False),
        (Done(), Done(leave=True), False),
        (Done(), BROKEN, True),
        (BROKEN, Done(), True),
    ],
)
def test_the_connection_is_watched_and_is_the_lock(watched: Answer, pinged: Answer, lost: bool) -> None:
    held = script(Done(), PRIMARY, FREE)
    assert held.run(held.protocol.acquire())
    held._answer = lambda step: watched if isinstance(step, Watch) else pinged
    loss = held.run(held.protocol.keep())
    assert (loss is not None) == lost == ("lost" in held.events)
    held._answer = lambda _: Done()
    assert held.run(held.protocol.release()) == loss
    # The server has freed a lost lock already.
    assert any(isinstance(statement, Commit) for statement in held.statements) == (not lost)
    assert ("released" in held.events) == (not lost)
    if lost:
        assert loss.reason is LossReason.UNCONFIRMED


def test_a_commit_that_is_not_confirmed_is_a_loss() -> None:
    held = script(Done(), PRIMARY, FREE)
    assert held.run(held.protocol.acquire())
    held._answer = lambda step: BROKEN if isinstance(step, Execute) else None
    loss = held.run(held.protocol.release())
    assert [type(statement) for statement in held.statements] == [Begin, Outlast, Try, Commit]
    assert loss.reason is LossReason.UNCONFIRMED
    assert held.events[-1] == "lost"
    assert held.warnings[-1].endswith("another run may have overlapped with it"), "the command had ended"
