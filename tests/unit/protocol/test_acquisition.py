"""The rules of acquiring and freeing, step by step, against a scripted database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dislock.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LockNotAcquiredError,
    LossReason,
    SlotOverError,
    UnknownOutcomeError,
)
from dislock.events import Event
from dislock.protocol.acquisition import LEAVE_SECONDS, Acquisition
from dislock.protocol.lease import Terms
from dislock.protocol.plan import Plan, Senses, SlotPlan
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import (
    ClaimLease,
    ClaimSlot,
    GiveBackSlot,
    Inspect,
    MoveExpiry,
    ReadClock,
    rows_of,
    to_micros,
)
from dislock.protocol.steps import (
    ONLY_LOCAL,
    Answer,
    Close,
    Connect,
    Done,
    Execute,
    Failed,
    Failure,
    Step,
    Unanswered,
    Wait,
)

T0 = datetime(2026, 3, 1, 3, 0, tzinfo=timezone.utc)
NOW = to_micros(T0) + 1_000_000
SECOND = 1_000_000
SLOT = Slot(T0, T0 + timedelta(hours=1), T0 + timedelta(hours=2))
TERMS = Terms("cronjob-lock:lease:k", "host:1", 60, 10)
REFUSED = Failed(Failure("too many connections"))
BROKEN = Failed(Failure("server closed the connection", broken=True))


class Hourly:
    """A schedule with a tick at each full hour."""

    zone_name = "UTC"

    def __init__(self) -> None:
        self.asked: list[datetime] = []

    def slot(self, now: datetime, *, session_zone: str, tolerance: float) -> Slot:
        self.asked.append(now)
        tick = now.replace(minute=0, second=0, microsecond=0)
        return Slot(tick, tick + timedelta(hours=1), tick + timedelta(hours=2))

    def tolerance(self, now: datetime, *, session_zone: str, tolerance: float) -> float:
        return tolerance


class Script:
    """Carries steps out at once, by a function that answers them; time passes only in waits."""

    def __init__(self, plan: Plan, answer: Callable[[Step], Answer | None], chance: float = 0.5) -> None:
        self.now = 100.0
        self.said: list[tuple[int, str]] = []
        self.events: list[str] = []
        self.fields: dict[str, dict[str, object]] = {}
        self.steps: list[Step] = []
        self._answer = answer
        senses = Senses(
            lambda: self.now,
            lambda: T0.timestamp() + 1,
            lambda: chance,
            self.report,
        )
        self.protocol = Acquisition(plan, senses)

    def report(self, event: Event) -> None:
        self.said.append((event.level, event.message))
        self.events.append(event.name)
        self.fields[event.name] = dict(event.fields)

    def run(self, steps: Any) -> Any:
        step = next(steps)
        while True:
            self.steps.append(step)
            answer = self._answer(step)
            if isinstance(step, Wait) and answer is None:
                self.now = max(self.now, step.until)
            if isinstance(answer, Unanswered):
                self.now = max(self.now, step.by)
            if isinstance(step, Execute) and isinstance(answer, Done):
                answer = answer._replace(rows=named(step.statement, answer.rows))
            try:
                step = steps.send(answer or Done())
            except StopIteration as end:
                return end.value

    @property
    def statements(self) -> list[Any]:
        return [step.statement for step in self.steps if isinstance(step, Execute)]

    @property
    def warnings(self) -> list[str]:
        return [text for level, text in self.said if level >= logging.WARNING]


def named(statement: Any, rows: Any) -> tuple[Any, ...]:
    """Rows as the statement's own; those that say who holds a lock may leave out the slot."""
    if isinstance(statement, Inspect):
        rows = [(*row, None, None)[:5] for row in rows]
    if isinstance(statement, GiveBackSlot):
        rows = [row[:1] for row in rows]
    return rows_of(statement, rows)


def plan(**changes: Any) -> Plan:
    return Plan(targets=("db:5432",), owner="host:1", connect_timeout=10, started=100.0)._replace(**changes)


def slot_plan(schedule: Any = None, slot: Slot | None = SLOT) -> SlotPlan:
    return SlotPlan("cronjob-lock:schedule:k", slot, schedule)


def rows(*answers: Any) -> Callable[[Step], Answer | None]:
    """Answers the statements one after the other; everything else succeeds."""
    script = list(answers)

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute):
            given: Answer = script.pop(0) if script else Done(((NOW, 1, "host:1", NOW),))
            return given
        return None

    return answer


HELD = Done(((NOW, NOW + 60 * SECOND, "timestamp with time zone"),))
DOUBT = Done(((NOW, 1, "host:1", NOW),), doubt=ONLY_LOCAL)
NONE = Done()
GONE = Done(((None, None, NOW),))


def test_a_slot_takes_one_connection_and_two_statements_and_keeps_nothing_open() -> None:
    script = Script(plan(slot=slot_plan(Hourly(), None)), rows(Done(((NOW, "UTC"),)), HELD))
    assert script.run(script.protocol.acquire()) is True
    assert [type(statement) for statement in script.statements] == [ReadClock, ClaimSlot]
    assert [type(step) for step in script.steps] == [Wait, Connect, Execute, Execute, Close]
    assert script.protocol.token == NOW


@pytest.mark.parametrize("idle", [TERMS.interval, TERMS.interval + 0.1])
def test_a_lease_takes_a_second_connection_to_be_freed_only_when_the_first_was_idle(idle: float) -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    assert script.run(script.protocol.acquire()) is True
    script.now += idle
    assert script.run(script.protocol.release()) is None
    assert [type(statement) for statement in script.statements] == [ClaimLease, MoveExpiry]
    assert script.statements[0].ttl == 60_000_000
    again = [Connect] if idle > TERMS.interval else []
    assert [type(step) for step in script.steps] == [Wait, Connect, Execute, *again, Execute, Close]
    if again:
        # If no new one can be opened, there is time to use the old one.
        assert [step.by for step in script.steps if isinstance(step, Connect)][1] == script.now + LEAVE_SECONDS / 2


def test_a_release_that_is_not_answered_on_the_first_connection_is_repeated_on_a_new_one() -> None:
    script = Script(plan(lease=TERMS), rows(HELD, Unanswered()))
    assert script.run(script.protocol.acquire()) is True
    assert script.run(script.protocol.release()) is None
    assert [type(step) for step in script.steps] == [Wait, Connect, Execute, Execute, Connect, Execute, Close]
    assert script.now - 100 == 1


def test_a_connection_that_renewed_a_moment_ago_frees_the_lease() -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    assert script.run(script.protocol.acquire()) is True
    answers = script._answer
    script._answer = lambda step: (
        Done(leave=True) if isinstance(step, Wait) and step.until > 200 and script.now > 150 else answers(step)
    )
    assert script.run(script.protocol.keep()) is None
    assert script.now > 150
    assert script.run(script.protocol.release()) is None
    assert len([step for step in script.steps if isinstance(step, Connect)]) == 1


def test_a_release_with_a_doubt_is_tried_once_more_and_is_a_warning() -> None:
    script = Script(plan(lease=TERMS), rows(HELD, DOUBT, DOUBT))
    assert script.run(script.protocol.acquire()) is True
    assert script.run(script.protocol.release()) is None
    assert [type(statement) for statement in script.statements] == [ClaimLease, MoveExpiry, MoveExpiry]
    assert "could not be freed" in script.warnings[0]


def test_a_claim_that_had_to_wait_for_others_counts_from_its_own_sending() -> None:
    script = Script(plan(lease=TERMS), rows(HELD._replace(sent=103.0)))
    assert script.run(script.protocol.acquire()) is True
    assert script.protocol.lease is not None
    assert script.protocol.lease.stop_time == 103 + 60


def test_the_slot_is_that_of_the_start_however_long_connecting_took() -> None:
    schedule = Hourly()

    def answer(step: Step) -> Answer | None:
        if isinstance(step, Wait):
            return None
        if isinstance(step, Connect) and script.now < 105:
            script.now += 3
            return REFUSED
        return answers(step)

    answers = rows(Done(((NOW, "UTC"),)), HELD)
    script = Script(plan(slot=slot_plan(schedule, None)), answer)
    script.run(script.protocol.acquire())
    started = T0 + timedelta(seconds=1) - timedelta(seconds=script.now - 100)
    assert abs((schedule.asked[0] - started).total_seconds()) < 0.001


def test_a_slot_that_is_over_since_the_start_gives_way_to_the_current_one() -> None:
    schedule = Hourly()
    script = Script(plan(slot=slot_plan(schedule, None), started=100 - 2 * 3600), rows(Done(((NOW, "UTC"),)), HELD))
    script.run(script.protocol.acquire())
    assert [moment.hour for moment in schedule.asked[:2]] == [1, 3]
    assert script.statements[1].tick == to_micros(T0)


def test_a_refused_slot_says_who_holds_it() -> None:
    script = Script(plan(slot=slot_plan()), rows(NONE, Done((("other:7", NOW + 60 * SECOND, NOW),))))
    with pytest.raises(LockNotAcquiredError, match="other:7") as caught:
        script.run(script.protocol.acquire())
    assert caught.value.holder == "other:7"
    assert caught.value.expires_at == T0 + timedelta(seconds=61)
    assert not script.warnings


def test_a_row_that_outlives_the_next_slot_was_written_under_another_schedule() -> None:
    ends = to_micros(SLOT.following or T0)
    for late, warned in ((ends, False), (ends + 1, True)):
        script = Script(plan(slot=slot_plan()), rows(NONE, Done((("other:7", late, NOW),))))
        with pytest.raises(LockNotAcquiredError):
            script.run(script.protocol.acquire())
        assert bool(script.warnings) is warned


def test_a_slot_that_is_over_by_the_databases_clock_is_both_a_refusal_and_a_configuration_error() -> None:
    script = Script(plan(slot=slot_plan(slot=Slot(None, T0, None))), rows(NONE, GONE))
    with pytest.raises(SlotOverError):
        script.run(script.protocol.acquire())
    late = Done((("other:7", NOW - 5, NOW),))
    script = Script(plan(slot=slot_plan(slot=Slot(None, T0, None))), rows(NONE, late))
    with pytest.raises(SlotOverError) as caught:
        script.run(script.protocol.acquire())
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize("when", ["claim", "question"])
def test_a_request_to_leave_is_heard_though_the_slot_ended_on_the_way(when: str) -> None:
    gone = Done(((None, None, to_micros(SLOT.expires) + 1),), leave=when == "question")
    script = Script(
        plan(slot=slot_plan(Hourly(), None)),
        rows(Done(((NOW, "UTC"),)), Done(leave=when == "claim"), gone),
    )
    assert script.run(script.protocol.acquire()) is False
    assert not script.protocol.slot


def test_a_tick_that_was_started_is_told_as_that() -> None:
    script = Script(plan(slot=slot_plan()), rows(NONE, Done((("other:7", to_micros(SLOT.expires), NOW),))))
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert str(caught.value).endswith(
        f": the tick of {SLOT.tick} was started by other:7; the next one is {SLOT.expires}"
    )
    assert (caught.value.holder, caught.value.expires_at) == ("other:7", SLOT.expires)


@pytest.mark.parametrize(("tolerance", "offset", "warned"), [(0, 0.09, 0), (0, 0.2, 1), (5, 2.4, 0), (5, 2.6, 1)])
def test_clocks_that_are_kept_in_time_are_nothing_to_warn_of(tolerance: float, offset: float, warned: int) -> None:
    told = NOW + round(offset * SECOND)
    script = Script(
        plan(slot=slot_plan(Hourly(), None)._replace(tolerance=tolerance)), rows(Done(((told, "UTC"),)), HELD)
    )
    assert script.run(script.protocol.acquire())
    assert len(script.warnings) == warned


def test_a_refused_lease_gives_the_slot_back() -> None:
    script = Script(
        plan(slot=slot_plan(), lease=TERMS), rows(HELD, NONE, Done((("other:7", NOW + 9, NOW),)), Done(((1,),)))
    )
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    back = script.statements[-1]
    assert isinstance(back, GiveBackSlot)
    assert (back.tick, back.expires) == (to_micros(T0), to_micros(SLOT.expires))
    assert script.protocol.slot is None


def test_leaving_during_the_claim_of_the_lease_gives_everything_back() -> None:
    script = Script(plan(slot=slot_plan(), lease=TERMS), rows(HELD, HELD._replace(leave=True)))
    assert script.run(script.protocol.acquire()) is False
    assert [type(statement) for statement in script.statements] == [ClaimSlot, ClaimLease, MoveExpiry, GiveBackSlot]


def test_leaving_before_the_first_connection_opens_none() -> None:
    script = Script(plan(slot=slot_plan(), delay=30), lambda step: Done(leave=isinstance(step, Wait)))
    assert script.run(script.protocol.acquire()) is False
    assert [type(step) for step in script.steps] == [Wait, Close]


def test_a_claim_whose_answer_was_lost_never_counts_as_held_by_another() -> None:
    """The retry finds a live row with the own owner: ours, or a namesake's."""
    script = Script(plan(lease=TERMS), rows(BROKEN, NONE, Done((("host:1", NOW + 9 * SECOND, NOW),))))
    with pytest.raises(UnknownOutcomeError):
        script.run(script.protocol.acquire())


def test_a_claim_whose_answer_was_lost_and_that_another_won_is_a_plain_refusal() -> None:
    script = Script(plan(lease=TERMS), rows(BROKEN, NONE, Done((("other:7", NOW + 9 * SECOND, NOW),))))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())


def test_a_claim_that_was_never_answered_is_unknown_and_not_unavailable() -> None:
    script = Script(plan(lease=TERMS), lambda step: Unanswered() if isinstance(step, Execute) else None)
    with pytest.raises(UnknownOutcomeError):
        script.run(script.protocol.acquire())


def test_reaching_nobody_ends_within_the_time_limit_whatever_the_number_of_hosts() -> None:
    script = Script(
        plan(targets=("a", "b", "c"), lease=TERMS), lambda s: Unanswered() if isinstance(s, Connect) else None
    )
    with pytest.raises(DatabaseUnavailableError, match="a did not answer in time; b did"):
        script.run(script.protocol.acquire())
    assert script.now == pytest.approx(110)
    assert [step.target for step in script.steps if isinstance(step, Connect)][:3] == [0, 1, 2]


def test_a_permanent_error_is_not_tried_again() -> None:
    script = Script(plan(lease=TERMS), rows(Failed(Failure("the table is missing", permanent=True))))
    with pytest.raises(ConfigurationError, match="the table is missing"):
        script.run(script.protocol.acquire())
    assert len(script.statements) == 1


def test_one_host_that_refuses_for_good_does_not_hide_another_that_may_come_back() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Connect):
            return Failed(Failure("no such database", permanent=step.target == 0))
        return None

    script = Script(plan(targets=("a", "b"), lease=TERMS), answer)
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())


def test_a_host_clock_that_is_far_off_is_named_and_a_small_offset_is_not() -> None:
    for offset, warned in ((0, False), (2, False), (-3, True), (3, True)):
        told = NOW + offset * SECOND
        script = Script(plan(slot=slot_plan(Hourly(), None)), rows(Done(((told, "UTC"),)), HELD))
        script.run(script.protocol.acquire())
        assert bool(script.warnings) is warned, offset
        if warned:
            assert script.fields["clock offset"]["offset_seconds"] == -offset


def test_keeping_renews_at_its_pace_until_told_to_leave() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Wait) and script.now >= 140:
            return Done(leave=True)
        return answers(step)

    answers = rows(HELD)
    script = Script(plan(lease=TERMS), answer)
    script.run(script.protocol.acquire())
    assert script.run(script.protocol.keep()) is None
    assert len(script.statements) == 1 + 4


def test_a_wedged_database_delays_a_loss_by_nothing() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, (Execute, Connect)) and script.now > 100:
            return Unanswered()
        return answers(step)

    answers = rows(HELD)
    script = Script(plan(lease=TERMS._replace(grace=10)), answer)
    script.run(script.protocol.acquire())
    loss = script.run(script.protocol.keep())
    assert loss.reason is LossReason.UNCONFIRMED
    assert script.now == pytest.approx(100 + 49.8)
    tries = [step for step in script.steps if isinstance(step, Execute)]
    assert len(tries) == 2, "a connection that did not answer is not used again"


def test_freeing_falls_back_to_the_connection_that_renewed() -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    script.run(script.protocol.acquire())
    script._answer = lambda step: REFUSED if isinstance(step, Connect) else rows()(step)
    assert script.run(script.protocol.release()) is None
    assert isinstance(script.statements[-1], MoveExpiry)
    assert not script.warnings


def test_a_database_that_is_away_at_the_end_is_a_warning_before_the_stop_time_and_a_loss_after() -> None:
    for ended, lost in ((120.0, False), (170.0, True)):
        script = Script(plan(lease=TERMS, supervised=True), rows(HELD))
        script.run(script.protocol.acquire())
        script.now = ended
        script._answer = lambda step: BROKEN if isinstance(step, Execute) else None
        loss = script.run(script.protocol.release())
        assert bool(loss) is lost
        assert script.warnings[0].endswith("another run may have overlapped with it") is lost
        assert script.events == ["taken", "lost" if lost else "release failed"]
        assert script.now - ended <= LEAVE_SECONDS


def test_freeing_that_finds_another_in_the_row_is_a_loss() -> None:
    script = Script(plan(lease=TERMS), rows(HELD, Done(((NOW, 0, "other:7", NOW + 9),))))
    script.run(script.protocol.acquire())
    loss = script.run(script.protocol.release())
    assert loss.reason is LossReason.TAKEN
    assert script.protocol.loss is loss


def test_a_repeated_release_recognises_its_own() -> None:
    script = Script(plan(lease=TERMS), rows(HELD, BROKEN, Done(((NOW, 1, "host:1", NOW),))))
    script.run(script.protocol.acquire())
    assert script.run(script.protocol.release()) is None
    first, second = script.statements[-2:]
    assert first.expires == second.expires


def test_asking_who_holds_the_row_is_only_asked_after_a_refusal() -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    script.run(script.protocol.acquire())
    assert not [statement for statement in script.statements if isinstance(statement, Inspect)]


def test_a_claim_refused_by_its_own_row_that_has_ended_since_is_unknown_too() -> None:
    for answer in (Done((("host:1", NOW - 1, NOW),)), GONE):
        script = Script(plan(lease=TERMS), rows(BROKEN, NONE, answer))
        with pytest.raises(UnknownOutcomeError):
            script.run(script.protocol.acquire())


def test_a_refusal_in_doubt_is_only_plain_when_another_holds_that_very_slot() -> None:
    """The own lost claim may have taken the slot; another who took the next one says nothing about this one."""
    for now in (NOW, to_micros(SLOT.expires) + 1):
        later = Done((("other:7", to_micros(SLOT.following or T0), now),))
        script = Script(plan(slot=slot_plan()), rows(BROKEN, NONE, later))
        with pytest.raises(UnknownOutcomeError):
            script.run(script.protocol.acquire())
    same = Done((("other:7", to_micros(SLOT.expires), NOW),))
    script = Script(plan(slot=slot_plan()), rows(BROKEN, NONE, same))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())


def test_a_lease_whose_answer_came_too_late_is_not_entered_and_freed() -> None:
    def answer(step: Step) -> Answer | None:
        if isinstance(step, Execute) and isinstance(step.statement, ClaimLease):
            script.now += 8
        return answers(step)

    answers = rows(HELD)
    script = Script(plan(lease=TERMS._replace(ttl=5, interval=1)), answer)
    with pytest.raises(DatabaseUnavailableError, match="too late"):
        script.run(script.protocol.acquire())
    assert isinstance(script.statements[-1], MoveExpiry)


def test_a_give_back_that_may_have_been_carried_out_is_not_repeated() -> None:
    script = Script(plan(slot=slot_plan(), lease=TERMS), rows(HELD, NONE, Done((("other:7", NOW + 9, NOW),)), BROKEN))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    assert [type(statement) for statement in script.statements].count(GiveBackSlot) == 1
    assert "may stay taken" in script.warnings[0]
    script = Script(
        plan(slot=slot_plan(), lease=TERMS),
        rows(HELD, NONE, Done((("other:7", NOW + 9, NOW),)), Failed(Failure("lock timeout")), Done(((1,),))),
    )
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    assert [type(statement) for statement in script.statements].count(GiveBackSlot) == 2
    assert not script.warnings


def test_a_lost_answer_to_the_claim_does_not_keep_a_give_back_from_being_repeated() -> None:
    script = Script(
        plan(slot=slot_plan(), lease=TERMS),
        rows(BROKEN, HELD, NONE, Done((("other:7", NOW + 9, NOW),)), Failed(Failure("lock timeout")), Done(((1,),))),
    )
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    assert [type(statement) for statement in script.statements].count(GiveBackSlot) == 2


@pytest.mark.parametrize("told_on", [Connect, Execute])
def test_leaving_is_heard_whatever_step_is_under_way(told_on: type) -> None:
    def answer(step: Step) -> Answer | None:
        given = answers(step) or Done()
        if script.now > 100 and isinstance(step, told_on):
            return given._replace(leave=True)
        if script.now > 100 and isinstance(step, Execute):
            return BROKEN
        return None if isinstance(step, Wait) else given

    answers = rows(HELD)
    script = Script(plan(lease=TERMS), answer)
    script.run(script.protocol.acquire())
    assert script.run(script.protocol.keep()) is None


def test_leaving_while_connecting_takes_nothing() -> None:
    script = Script(plan(lease=TERMS), lambda step: Done(leave=isinstance(step, Connect)))
    assert script.run(script.protocol.acquire()) is False
    assert not script.statements


@pytest.mark.parametrize("kind", ["timestamp without time zone", "date", "timestamp(0) with time zone"])
def test_a_table_that_cannot_keep_a_lock_is_refused_and_given_back(kind: str) -> None:
    claimed = Done(((NOW, NOW + 60 * SECOND, kind),))
    for locks, undone in (({"slot": slot_plan()}, GiveBackSlot), ({"lease": TERMS}, MoveExpiry)):
        script = Script(plan(**locks), rows(claimed))
        with pytest.raises(ConfigurationError, match="timestamptz"):
            script.run(script.protocol.acquire())
        assert isinstance(script.statements[-1], undone)


def test_after_a_long_sleep_nothing_is_sent_on_a_lease_that_is_over() -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    script.run(script.protocol.acquire())
    script.now += 3600
    loss = script.run(script.protocol.keep())
    assert loss is not None
    assert loss.reason is LossReason.UNCONFIRMED
    assert [type(statement) for statement in script.statements] == [ClaimLease]
