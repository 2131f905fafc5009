"""The rules of an advisory lock: which statements are sent, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from dislock.errors import DatabaseUnavailableError, LockNotAcquiredError, LockWaitEndedError, LossReason
from dislock.protocol.advisory import AdvisoryAcquisition
from dislock.protocol.advisory_statements import Begin, Commit, Holder, Outlast, Queue, SetTimeout, Try
from dislock.protocol.plan import AdvisoryPlan, Senses
from dislock.protocol.steps import Answer, Close, Done, Execute, Failed, Failure, Watch
from tests.unit.protocol.test_acquisition import Script, plan, rows

PRIMARY, STANDBY = Done(((False, 6),)), Done(((True, 6),))
FREE, TAKEN = Done(((True,),)), Done(((False,),))
BROKEN, TIMED_OUT = Failed(Failure("cut", broken=True)), Failed(Failure("timeout", timed_out=True))


def script(*answers: Answer, wait: float = 0.0) -> Script:
    asked = plan(advisory=AdvisoryPlan(7, "k"), wait=wait)
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
