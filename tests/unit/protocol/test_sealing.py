"""A slot that is consumed by success: who may run it, and what seals it."""

from __future__ import annotations

from typing import Any

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLostError,
    LockNotAcquiredError,
    LockWaitEndedError,
    NotSealedError,
    SlotOverError,
)
from dislock.protocol.acquisition import LEAVE_SECONDS
from dislock.protocol.statements import ClaimLease, FreeAndSeal, Inspect, MoveExpiry, ReadClock, to_micros
from dislock.protocol.steps import Answer, Connect, Done, Execute, Failed, Failure, Step, Unanswered, Wait
from tests.unit.protocol.test_acquisition import (
    BROKEN,
    HELD,
    NONE,
    NOW,
    SECOND,
    SLOT,
    T0,
    TERMS,
    Hourly,
    Script,
    plan,
    rows,
    slot_plan,
)

ENDS = to_micros(SLOT.expires)
CLOCK = Done(((NOW, "UTC"),))
LOCKED = Failed(Failure("canceling statement due to lock timeout"))
SEALED = Done(((NOW, 1, "host:1", NOW, 1, None, None),))


def look(
    slot_owner: str | None = None, slot_ends: int | None = None, *, holder: str | None = None, now: int = NOW
) -> Done:
    """An answer about both rows."""
    return Done(((holder, now + 9 * SECOND if holder else None, now, slot_owner, slot_ends),))


FREE = look()


def success(*answers: Any, given: bool = False, **changes: Any) -> Script:
    slot = slot_plan() if given else slot_plan(Hourly(), None)
    first = () if given else (CLOCK,)
    return Script(plan(slot=slot._replace(by_success=True), lease=TERMS, **changes), rows(*first, *answers))


def acquired(*answers: Any, **changes: Any) -> Script:
    script = success(FREE, HELD, FREE, *answers, **changes)
    assert script.run(script.protocol.acquire()) is True
    return script


def test_the_slot_is_read_before_the_claim_and_again_after_its_answer() -> None:
    script = acquired()
    assert [type(statement) for statement in script.statements] == [ReadClock, Inspect, ClaimLease, Inspect]
    assert script.statements[-1].slot_key == "cronjob-lock:schedule:k"
    assert script.protocol.slot == SLOT


def test_a_sealed_tick_is_skipped_without_a_claim() -> None:
    script = success(look("other:7", ENDS))
    with pytest.raises(
        LockNotAcquiredError, match=f"the tick of {SLOT.tick} was completed by other:7".replace("+", r"\+")
    ):
        script.run(script.protocol.acquire())
    assert ClaimLease not in {type(statement) for statement in script.statements}
    assert not script.warnings


def test_a_tick_that_was_sealed_on_the_way_to_the_lease_frees_it_and_runs_nothing() -> None:
    script = success(FREE, HELD, look("other:7", ENDS))
    with pytest.raises(LockNotAcquiredError, match="was completed by other:7"):
        script.run(script.protocol.acquire())
    assert isinstance(script.statements[-1], MoveExpiry)
    assert script.protocol.slot is None


@pytest.mark.parametrize(("wait", "until"), [(0.0, 109.0), (300.0, 390.0)])
def test_the_tick_is_read_as_long_as_the_lease_would_be_waited_for(wait: float, until: float) -> None:
    """The database cannot be reached before then."""
    script = success(FREE, HELD, FREE, wait=wait)
    answers = script._answer
    script._answer = lambda step: BROKEN if isinstance(step, Connect) and script.now < until else answers(step)
    assert script.run(script.protocol.acquire()) is True
    assert until <= script.now < until + 2


def test_the_tick_is_read_again_after_the_claim_until_it_is_answered() -> None:
    script = success(FREE, HELD, Failed(Failure("busy")), Failed(Failure("busy")), FREE)
    assert script.run(script.protocol.acquire()) is True


TAKEN = Done(((NOW, 0, "other:7", NOW + 1),))


@pytest.mark.parametrize("asked_to_leave", [False, True])
def test_a_lease_that_nothing_ran_on_is_not_reported_as_lost(asked_to_leave: bool) -> None:
    script = success(FREE, HELD, FREE._replace(leave=True) if asked_to_leave else look("other:7", ENDS), TAKEN)
    if asked_to_leave:
        assert script.run(script.protocol.acquire()) is False
    else:
        with pytest.raises(LockNotAcquiredError, match="was completed by other:7"):
            script.run(script.protocol.acquire())
    assert isinstance(script.statements[-1], MoveExpiry)
    assert script.protocol.loss is not None
    assert "lost" not in script.events
    assert script.warnings == []


@pytest.mark.parametrize("ends", [to_micros(T0), to_micros(T0) - 1, NOW])
def test_a_slot_whose_row_ended_by_its_tick_is_open(ends: int) -> None:
    script = success(look("other:7", ends), HELD, look("other:7", ends))
    assert script.run(script.protocol.acquire()) is True


def test_a_row_that_ends_elsewhere_is_held_and_not_completed() -> None:
    script = success(look("other:7", ENDS + 2 * 3600 * SECOND))
    with pytest.raises(LockNotAcquiredError, match="is held by other:7"):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert "under another schedule" in warning


def test_without_a_wait_a_lease_that_is_held_is_a_refusal() -> None:
    script = success(look(holder="other:7"))
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert type(caught.value) is LockNotAcquiredError
    assert script.now == 100


def test_a_waiter_takes_over_from_a_holder_that_left_the_tick_open() -> None:
    script = success(look(holder="other:7"), look(holder="other:7"), FREE, HELD, FREE, wait=30.0)
    assert script.run(script.protocol.acquire()) is True
    assert script.protocol.slot == SLOT


def test_a_waiter_whose_tick_was_sealed_skips_it_although_the_lease_is_held() -> None:
    script = success(look(holder="other:7"), look("other:8", ENDS, holder="other:7"), wait=30.0)
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert type(caught.value) is LockNotAcquiredError
    assert caught.value.holder == "other:8"


def test_a_wait_ends_with_its_slot() -> None:
    over = ENDS + 1
    for answer, kind in (
        (look(holder="other:7", now=over), LockWaitEndedError),
        (look(now=over), DatabaseUnavailableError),
        # Whoever succeeded did so in time: that is an ordinary refusal.
        (look("other:7", ENDS, now=over), LockNotAcquiredError),
    ):
        script = success(look(holder="other:7"), answer, wait=9000.0)
        with pytest.raises(kind) as caught:
            script.run(script.protocol.acquire())
        assert type(caught.value) is kind
        assert ClaimLease not in {type(statement) for statement in script.statements}


def test_a_given_slot_that_is_over_is_an_error_of_its_own() -> None:
    script = success(look(now=ENDS), given=True)
    with pytest.raises(SlotOverError):
        script.run(script.protocol.acquire())


def test_a_slot_that_cannot_be_read_after_the_claim_runs_nothing() -> None:
    lost = Failed(Failure("out of memory"))
    script = success(FREE, HELD, *[lost] * 40)
    with pytest.raises(DatabaseUnavailableError, match="out of memory"):
        script.run(script.protocol.acquire())
    assert isinstance(script.statements[-1], MoveExpiry)
    script = success(FREE, HELD, Failed(Failure("no such column", permanent=True)))
    with pytest.raises(ConfigurationError):
        script.run(script.protocol.acquire())


def test_leaving_before_the_run_frees_the_lease_and_gives_nothing_back() -> None:
    script = success(FREE, HELD, FREE._replace(leave=True))
    assert script.run(script.protocol.acquire()) is False
    assert isinstance(script.statements[-1], MoveExpiry)


def test_success_frees_the_lease_and_seals_the_slot_in_one_statement() -> None:
    script = acquired(SEALED)
    assert script.run(script.protocol.release(succeeded=True)) is None
    statement = script.statements[-1]
    assert isinstance(statement, FreeAndSeal)
    assert (statement.slot_key, statement.slot_expires) == ("cronjob-lock:schedule:k", ENDS)
    assert (statement.key, statement.known, statement.expires) == (TERMS.key, [NOW + 60 * SECOND], NOW + 1)
    assert script.protocol.sealed is True
    assert script.events == ["taken", "sealed"]
    script.protocol.check()


@pytest.mark.parametrize("started", [True, False])
def test_a_run_that_failed_frees_the_lease_and_leaves_the_tick_open(started: bool) -> None:
    script = acquired(Done(((NOW, 1, "host:1", NOW),)))
    assert script.run(script.protocol.release(started=started)) is None
    assert [type(statement) for statement in script.statements[4:]] == [MoveExpiry]
    assert script.protocol.sealed is None
    assert not script.warnings


def test_a_tick_that_is_closed_already_needs_no_seal_of_ours() -> None:
    script = acquired(Done(((NOW, 1, "host:1", NOW, 0, "operator", ENDS + 1),)))
    script.run(script.protocol.release(succeeded=True))
    assert script.protocol.sealed is True


def test_a_statement_that_did_not_move_the_lease_seals_nothing() -> None:
    script = acquired(Done(((NOW, 0, "other:7", NOW + 9, 0, None, None),)), supervised=True)
    loss = script.run(script.protocol.release(succeeded=True))
    assert loss is not None
    assert script.protocol.sealed is False
    assert script.warnings[0].endswith("the command had ended by then, but another run may have overlapped with it")
    assert [type(statement) for statement in script.statements[4:]] == [FreeAndSeal]
    with pytest.raises(LeaseLostError):
        script.protocol.check()


def test_a_seal_is_retried_until_the_stop_time_and_then_the_lease_is_freed_alone() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute) and isinstance(step.statement, FreeAndSeal):
            # The slot's row is locked by others.
            script.now += int(step.statement.lock_timeout[:-2]) / 1000
            return LOCKED
        return usual(step)

    script = acquired()
    usual, script._answer = rows(Done(((NOW, 1, "host:1", NOW),))), answer
    stop = script.protocol.lease.stop_time if script.protocol.lease else 0.0
    assert script.run(script.protocol.release(succeeded=True)) is None
    tries = [statement for statement in script.statements if isinstance(statement, FreeAndSeal)]
    assert len(tries) > 5
    assert len({tries[i].expires for i in range(len(tries))}) == 1
    assert stop - 2 < script.now <= stop + LEAVE_SECONDS
    assert isinstance(script.statements[-1], MoveExpiry)
    assert script.protocol.sealed is False
    (warning,) = script.warnings
    assert "was not sealed" in warning
    assert "another host may run this tick again" in warning
    with pytest.raises(NotSealedError):
        script.protocol.check()
    error = RuntimeError("its own")
    script.protocol.check(error)


def test_a_database_that_is_away_until_the_stop_time_is_no_loss_of_work_that_ended_before_it() -> None:
    script = acquired()
    script._answer = lambda step: BROKEN if isinstance(step, Execute) else None
    assert script.run(script.protocol.release(succeeded=True)) is None
    assert script.events == ["taken", "seal failed", "release failed"]
    assert script.protocol.sealed is False


def test_a_repeated_seal_recognises_its_own() -> None:
    for repeated in (
        # The first one did it, and nobody came since.
        Done(((NOW, 1, "host:1", NOW + 1, 0, "host:1", ENDS),)),
        # Another has taken the lease since.
        Done(((NOW, 0, "other:7", NOW + 9, 0, "host:1", ENDS),)),
    ):
        script = acquired(BROKEN, repeated)
        assert script.run(script.protocol.release(succeeded=True)) is None
        assert script.protocol.sealed is True
        first, second = script.statements[-2:]
        assert (first.expires, first.slot_expires) == (second.expires, second.slot_expires)


def test_a_seal_that_was_never_in_doubt_is_not_taken_for_our_own() -> None:
    script = acquired(Done(((NOW, 0, "host:1", NOW + 9, 0, "host:1", ENDS),)))
    assert script.run(script.protocol.release(succeeded=True)) is not None
    assert script.protocol.sealed is False


def test_a_late_answer_is_not_taken_for_our_own_seal() -> None:
    """By then another process with the same owner string may have run the tick and sealed it."""

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute) and isinstance(step.statement, FreeAndSeal):
            tries.append(step)
            if len(tries) == 1:
                return BROKEN
            script.now += 100
            return Done(((NOW, 0, "host:1", NOW + 9, 0, "host:1", ENDS),))
        return None

    tries: list[Step] = []
    script = acquired()
    script._answer = answer
    assert script.run(script.protocol.release(succeeded=True)) is not None
    assert script.protocol.sealed is False


def test_work_that_ends_when_the_time_of_its_lease_is_up_is_not_sealed() -> None:
    script = acquired(Done(((NOW, 1, "host:1", NOW),)))
    script.now += 200
    assert script.run(script.protocol.release(succeeded=True)) is None
    assert [type(statement) for statement in script.statements[4:]] == [MoveExpiry]
    assert script.protocol.sealed is False
    assert len(script.warnings) == 1


@pytest.mark.parametrize("continues", [True, False])
def test_a_lost_lease_seals_nothing_and_the_loss_is_one_line(continues: bool) -> None:
    script = acquired(Done(((NOW, 0, "other:7", NOW + 9),)), continues=continues)
    script.run(script.protocol.keep())
    assert script.protocol.loss
    script.run(script.protocol.release(succeeded=True))
    assert FreeAndSeal not in {type(statement) for statement in script.statements}
    assert script.protocol.sealed is False
    assert len(script.warnings) == (2 if continues else 1)
    with pytest.raises(NotSealedError if continues else LeaseLostError):
        script.protocol.check()


def test_renewals_that_could_not_be_stopped_seal_nothing() -> None:
    script = acquired(continues=True)
    script.protocol.fail("its renewal could not be stopped", succeeded=True)
    assert script.protocol.sealed is False


def test_an_answer_with_a_doubt_is_no_seal_and_is_asked_for_again() -> None:
    doubtful = SEALED._replace(doubt="the server warned")
    script = acquired(doubtful, doubtful, SEALED)
    assert script.run(script.protocol.release(succeeded=True)) is None
    assert script.protocol.sealed is True

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute):
            script.now += 9
            return doubtful
        return None

    script = acquired()
    script._answer = answer
    assert script.run(script.protocol.release(succeeded=True)) is None
    assert script.protocol.sealed is False
    (warning,) = script.warnings
    assert "the server warned" in warning


def test_a_release_with_a_doubt_is_repeated_on_a_new_connection() -> None:
    moved = Done(((NOW, 1, "host:1", NOW),))
    script = Script(plan(lease=TERMS), rows(HELD, moved._replace(doubt="cancelled"), moved))
    script.run(script.protocol.acquire())
    assert script.run(script.protocol.release()) is None
    assert not script.warnings
    assert [type(step) for step in script.steps].count(Connect) == 2


def test_asked_to_leave_while_sealing_it_stops_and_says_so() -> None:
    script = acquired(Unanswered(leave=True))
    usual = script._answer
    script._answer = lambda step: Done(leave=True) if isinstance(step, (Wait, Connect)) else usual(step)
    script.run(script.protocol.release(succeeded=True))
    assert script.now < 110


@pytest.mark.parametrize("answer", [NONE, HELD])
def test_claims_with_a_doubt_run_nothing(answer: Done) -> None:
    script = Script(plan(lease=TERMS), rows(answer._replace(doubt="the server warned")))
    with pytest.raises(DatabaseUnavailableError, match="the server warned"):
        script.run(script.protocol.acquire())
    kinds = [type(statement) for statement in script.statements]
    assert kinds == [ClaimLease, MoveExpiry] if answer.rows else [ClaimLease]


def test_a_renewal_with_a_doubt_has_failed_and_its_value_stays_known() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute):
            return moved if isinstance(step.statement, MoveExpiry) else HELD
        return Done(leave=True) if isinstance(step, Wait) and script.now > 115 else None

    moved = Done(((NOW, 1, "host:1", NOW),), doubt="the server warned")
    script = Script(plan(lease=TERMS), answer)
    script.run(script.protocol.acquire())
    assert script.run(script.protocol.keep()) is None
    first, second, *_ = (s for s in script.statements if isinstance(s, MoveExpiry))
    assert second.known == [*first.known, first.expires]
    assert "renewal failed" in script.events
