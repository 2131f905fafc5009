"""Which statement goes over which connection, when, and with which others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dislock.protocol.plan import Senses
from dislock.protocol.sharing import LATE, NOT_SENT, Hub
from dislock.protocol.sharing_lines import Line
from dislock.protocol.sharing_tickets import Member, Seat, renew_many
from dislock.protocol.statements import ClaimLease, ClaimSlot, Held, Inspect, Moved, MoveExpiry, Renewed, RenewMany
from dislock.protocol.steps import (
    LINGER,
    ONLY_LOCAL,
    Answer,
    Close,
    Connect,
    Done,
    Execute,
    Failed,
    Failure,
    Step,
    Steps,
    Unanswered,
    Wait,
)

#: What is promised, in seconds and in connections.
IDLE, ROW_WAIT, STUCK, MOST_LINES = 5.0, 0.2, 0.5, 4
#: The most renewals in one statement.
BEAT = 1000
ERROR, BROKEN = Failure("disk full"), Failure("reset", broken=True)


class World:
    """A hub whose two lines are answered by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.hub = Hub(("db",), Senses(lambda: self.now, lambda: self.now, lambda: 0.5, lambda _: None), self)
        self.running: dict[Line, Steps[None]] = {}
        self.steps: dict[Line, Step] = {}
        self.hurried: list[Line] = []
        self.connects, self.connect_by = 0, 0.0
        self._started: list[Line] = []
        self.alarm = math.inf

    @property
    def main(self) -> Line:
        return self.hub.main

    @property
    def side(self) -> Line:
        return self.hub.side

    def start(self, line: Line) -> None:
        self._started.append(line)

    def hurry(self, line: Line) -> None:
        self.hurried.append(line)

    def call_at(self, moment: float) -> None:
        self.alarm = moment

    def settle(self) -> None:
        """Connects what wants to be connected, until each line waits for an answer or has ended."""
        while self._started:
            line = self._started.pop(0)
            self.running[line] = line.serve()
            self._go(line, None)

    def _go(self, line: Line, answer: Answer | None) -> None:
        try:
            step = self.running[line].send(answer)  # type: ignore[arg-type] # None starts it
            while not isinstance(step, Execute):
                if isinstance(step, Connect):
                    self.connects += 1
                    self.connect_by = step.by
                step = self.running[line].send(Done())
            self.steps[line] = step
        except StopIteration:
            del self.running[line]
            self.steps.pop(line, None)
            self.hub.stopped(line)

    def asked(self, line: Line) -> Any:
        """The statement under way."""
        self.settle()
        step = self.steps.get(line)
        return step.statement if isinstance(step, Execute) else None

    def answer(self, line: Line, answer: Answer) -> None:
        self.settle()
        del self.steps[line]
        self._go(line, answer)
        self.settle()

    def pass_to(self, moment: float) -> None:
        self.now = moment
        if self.alarm <= moment:
            self.alarm = math.inf
            self.hub.tick()
        self.settle()


class Lock:
    """Something that runs, and what it heard."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.seat = world, name, Seat()
        self.heard: list[Answer] = []
        self.ended: list[tuple[Any, BaseException | None]] = []
        self.member: Member

    def run(self, steps: Steps[Any], *, keeps: bool = False) -> Lock:
        self.member = self.world.hub.run(self.seat, steps, lambda *end: self.ended.append(end), keeps=keeps)
        self.world.settle()
        return self

    def ask(self, statement: Any, seconds: float = 10.0) -> Lock:
        """Carries out one statement."""

        def steps() -> Steps[None]:
            self.heard.append((yield Connect(0, self.world.now + seconds)))
            self.hear((yield Execute(statement, self.world.now + seconds)))

        return self.run(steps())

    def hear(self, answer: Answer) -> None:
        """Without the moment at which it was sent."""
        self.heard.append(answer._replace(sent=None) if isinstance(answer, Done) else answer)

    def keep(self, pause: float, seconds: float = 5.0) -> Lock:
        """Renews every ``pause`` seconds, until asked to leave."""

        def steps() -> Steps[None]:
            yield Connect(0, self.world.now + seconds)
            number = 0
            while not (yield Wait(self.world.now + pause)).leave:
                number += 1
                self.hear((yield Execute(self.renewal(number), self.world.now + seconds)))
                if self.heard[-1].leave:
                    return

        return self.run(steps(), keeps=True)

    def renewal(self, number: int = 1) -> MoveExpiry:
        return MoveExpiry(self.name, "host:1", "9s", [number], number + 1)

    def leave(self) -> None:
        self.world.hub.request(self.member)
        self.world.settle()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lock(world: World) -> Callable[[str], Lock]:
    return lambda name: Lock(world, name)


def claim(key: str) -> ClaimLease:
    return ClaimLease(key, "host:1", "9000ms", 10_000_000)


def confirmed(*numbers: int) -> Done:
    return Done(tuple(Renewed(7, number) for number in numbers))


# Beats


def test_renewals_that_are_nearly_due_are_one_statement(world: World, lock: Callable[[str], Lock]) -> None:
    a, b, c = lock("a").keep(10), lock("b").keep(13), lock("c").keep(14)
    world.pass_to(109.9)
    assert world.asked(world.main) is None
    world.pass_to(110)
    assert world.asked(world.main).keys == ["a", "a", "b", "b"]
    world.answer(world.main, confirmed(1, 0))
    assert a.heard == b.heard == [Done((Moved(7, 1, "host:1", 2),))]
    assert not c.heard
    assert world.connects == 1


def test_nobody_is_woken_for_what_was_done_with_others(world: World, lock: Callable[[str], Lock]) -> None:
    lock("a").keep(10)
    lock("b").keep(13)
    world.pass_to(110)
    world.answer(world.main, confirmed(1, 0))
    # The deadline of both statements, and not b's own time.
    assert world.alarm == 115
    world.pass_to(115)
    assert world.alarm == 120


def test_a_beat_has_a_row_for_each_end_that_may_be_ours() -> None:
    moves = [MoveExpiry("a", "o:1", "9s", [3, 5], 9), MoveExpiry("b", "o:2", "9s", [4], 8)]
    assert renew_many(moves, "1ms") == RenewMany(
        [0, 0, 0, 1, 1], ["a", "a", "a", "b", "b"], ["o:1"] * 3 + ["o:2"] * 2, [3, 5, 9, 4, 8], [9, 9, 9, 8, 8], "1ms"
    )


def test_a_beat_only_confirms(world: World, lock: Callable[[str], Lock]) -> None:
    a, b = lock("a").keep(10), lock("b").keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed(0))
    assert a.heard
    assert not b.heard
    # Asked alone, on the other connection, and that answer decides.
    assert world.asked(world.side)._replace(lock_timeout="9s") == b.renewal()
    world.answer(world.side, Done((Moved(7, 0, "thief:1", 99),)))
    assert b.heard == [Done((Moved(7, 0, "thief:1", 99),))]
    assert world.connects == 2


def test_a_doubt_of_a_beat_is_a_doubt_for_each(world: World, lock: Callable[[str], Lock]) -> None:
    a, b = lock("a").keep(10), lock("b").keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed(0, 1)._replace(doubt=ONLY_LOCAL))
    assert [answer.doubt for each in (a, b) for answer in each.heard if isinstance(answer, Done)] == [ONLY_LOCAL] * 2


@pytest.mark.parametrize("answer", [Unanswered(), Failed(BROKEN)])
def test_a_beat_without_an_answer_fails_for_each(world: World, lock: Callable[[str], Lock], answer: Answer) -> None:
    locks = [lock("a").keep(10), lock("b").keep(10)]
    world.pass_to(110)
    world.answer(world.main, answer)
    assert [each.heard for each in locks] == [[answer], [answer]]
    world.pass_to(120)
    assert world.connects == 2, "the next one has a new connection"


def test_an_error_may_be_the_fault_of_one_so_each_is_asked_alone(world: World, lock: Callable[[str], Lock]) -> None:
    a, b = lock("a").keep(10), lock("b").keep(10)
    world.pass_to(110)
    world.answer(world.main, Failed(ERROR))
    assert world.asked(world.side).key == "a"
    world.answer(world.side, Failed(ERROR))
    assert world.asked(world.side).key == "b"
    world.answer(world.side, Done((Moved(7, 1, "host:1", 2),)))
    assert a.heard == [Failed(ERROR)]
    assert b.heard == [Done((Moved(7, 1, "host:1", 2),))]


def test_the_error_of_one_that_was_alone_in_its_beat_is_its_answer(world: World, lock: Callable[[str], Lock]) -> None:
    keeper = lock("k").keep(10)
    world.pass_to(110)
    world.answer(world.main, Failed(ERROR))
    assert keeper.heard == [Failed(ERROR)]
    assert world.asked(world.side) is None


def test_who_cannot_be_asked_alone_in_time_hears_why_the_beat_failed(world: World, lock: Callable[[str], Lock]) -> None:
    lock("a").keep(10, seconds=STUCK / 2)
    b = lock("b").keep(10, seconds=STUCK / 2)
    world.pass_to(110)
    world.answer(world.main, Failed(ERROR))
    assert world.asked(world.side).key == "a"
    world.pass_to(110 + STUCK / 2)
    assert b.heard == [Failed(ERROR)]


def test_who_is_not_in_a_beat_does_not_wait_for_the_next_one(world: World, lock: Callable[[str], Lock]) -> None:
    for number in range(BEAT + 1):
        lock(str(number)).keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed(*range(1, BEAT)))
    assert world.asked(world.main).keys == [str(BEAT)] * 2
    assert world.asked(world.side).key == "0"


def test_who_has_little_time_is_not_in_one_beat_with_those_who_have_much(
    world: World, lock: Callable[[str], Lock]
) -> None:
    lock("long").keep(10, seconds=2.1)
    lock("less").keep(10, seconds=2)
    lock("short").keep(10, seconds=1)
    lock("shorter").keep(10, seconds=0.5)
    world.pass_to(110)
    assert world.asked(world.main).keys == ["shorter", "shorter", "short", "short", "less", "less"]
    step = world.steps[world.main]
    assert isinstance(step, Execute)
    assert step.by == 110.5, "the deadline is the earliest"
    world.answer(world.main, Unanswered())
    assert world.asked(world.main).keys == ["long", "long"]


def test_a_beat_has_its_limit(world: World, lock: Callable[[str], Lock]) -> None:
    for number in range(BEAT + 3):
        lock(str(number)).keep(10)
    world.pass_to(110)
    assert len(set(world.asked(world.main).keys)) == BEAT
    world.answer(world.main, confirmed(*range(BEAT)))
    assert len(set(world.asked(world.main).keys)) == 3


# Statements alone


def test_one_lock_needs_one_connection(world: World, lock: Callable[[str], Lock]) -> None:
    first = lock("a").ask(claim("a"))
    assert world.asked(world.main).key == "a"
    world.answer(world.main, Done((1,)))
    first.keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed(0))
    first.leave()
    first.ask(first.renewal())
    assert isinstance(world.asked(world.main), MoveExpiry)
    world.answer(world.main, Done((1,)))
    assert world.connects == 1


def test_renewals_go_before_releases_and_releases_before_claims(world: World, lock: Callable[[str], Lock]) -> None:
    keeper = lock("k").keep(10)
    world.now = 109.8
    lock("first").ask(Inspect("first"), 60)
    lock("read").ask(Inspect("read"), 60)
    lock("freed").ask(lock("freed").renewal(), 60)
    world.pass_to(110)
    world.answer(world.main, confirmed())
    assert not keeper.heard
    order = []
    for _ in range(4):
        order.append(world.asked(world.side).key)
        world.answer(world.side, Done(((),)))
    assert order == ["first", "k", "freed", "read"]


@pytest.mark.parametrize("statement", [claim("a"), ClaimSlot("a", "host:1", "9000ms", None, 900)])
@pytest.mark.parametrize(("held", "goes"), [((None, None), True), (("h", 40), True), (("h", 60), False)])
def test_a_claim_beside_kept_leases_is_preceded_by_a_plain_read(
    world: World, lock: Callable[[str], Lock], statement: Any, held: Any, goes: bool
) -> None:
    lock("k").keep(10)
    claimed = lock("a").ask(statement)
    assert world.asked(world.side) == Inspect("a")
    world.answer(world.side, Done((Held(held[0], held[1], 50, None, None),)))
    if goes:
        sent = world.asked(world.side)
        assert type(sent) is type(statement)
        # A row that somebody has locked delays nobody for longer.
        assert 0 < int(sent.lock_timeout[:-2]) <= ROW_WAIT * 1000
        world.answer(world.side, Done((1,)))
        assert claimed.heard[-1] == Done((1,))
    else:
        assert claimed.heard[-1] == Done(()), "refused, without having touched the row"


def test_a_slot_that_ends_at_its_tick_is_not_held(world: World, lock: Callable[[str], Lock]) -> None:
    lock("k").keep(10)
    lock("a").ask(ClaimSlot("a", "host:1", "9000ms", 60, 900))
    world.answer(world.side, Done((Held("h", 60, 50, None, None),)))
    assert isinstance(world.asked(world.side), ClaimSlot)


@pytest.mark.parametrize("answer", [Unanswered(), Failed(BROKEN)])
def test_a_claim_that_was_not_sent_leaves_nothing_in_doubt(
    world: World, lock: Callable[[str], Lock], answer: Answer
) -> None:
    lock("k").keep(10)
    claimed = lock("a").ask(claim("a"))
    world.answer(world.side, answer)
    heard = claimed.heard[-1]
    assert isinstance(heard, Failed)
    assert not heard.failure.broken


def test_claims_are_asked_one_by_one_each_with_its_own_deadline(world: World, lock: Callable[[str], Lock]) -> None:
    stuck, late, patient = lock("a").ask(claim("a"), 0.3), lock("b").ask(claim("b"), 0.2), lock("c").ask(claim("c"), 30)
    world.pass_to(100.201)
    assert late.heard[-1] == Failed(Failure(NOT_SENT)), "known not to have been sent"
    world.pass_to(100.301)
    assert len(stuck.heard) == 1, "its line says so itself"
    world.answer(world.main, Unanswered())
    assert stuck.heard[-1] == Unanswered()
    assert world.asked(world.main).key == "c"
    world.answer(world.main, Done((1,)))
    assert patient.heard[-1] == Done((1,))


def test_one_that_is_not_sent_hears_why_the_one_before_it_failed(world: World, lock: Callable[[str], Lock]) -> None:
    heard: list[Answer] = []

    def steps() -> Steps[None]:
        for by in (110.0, 100.2):
            heard.append((yield Execute(claim("b"), by)))

    lock("b").run(steps())
    lock("a").ask(lock("a").renewal())
    assert world.asked(world.main).key == "b"
    world.answer(world.main, Failed(ERROR))
    assert world.asked(world.main).key == "a"
    world.pass_to(100.201)
    assert heard == [Failed(ERROR), Failed(ERROR)]


def test_a_line_that_does_not_say_so_in_time_is_not_waited_for(world: World, lock: Callable[[str], Lock]) -> None:
    stuck = lock("a").ask(claim("a"), 10)
    world.pass_to(110)
    world.pass_to(110 + LATE)
    assert stuck.heard[-1] == Unanswered()
    assert world.hurried == [world.main]


def test_a_renewal_may_wait_for_its_row_as_long_as_nobody_else_is_there(
    world: World, lock: Callable[[str], Lock]
) -> None:
    lock("k").keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed())
    assert int(world.asked(world.side).lock_timeout[:-2]) > 4000
    lock("a").ask(claim("a"))
    assert world.hurried == [world.side]
    world.answer(world.side, Failed(ERROR))
    world.answer(world.side, Done((Held(None, None, 50, None, None),)))
    lock("b").ask(claim("b"))
    assert world.hurried == [world.side], "a claim is not hurried by another"


def test_nobody_waits_for_long_for_a_connection_that_does_not_answer(world: World, lock: Callable[[str], Lock]) -> None:
    stuck, second = lock("a").ask(claim("a"), 60), lock("b").ask(claim("b"), 60)
    world.pass_to(100 + STUCK / 2)
    assert world.asked(world.side) is None
    world.pass_to(100 + STUCK)
    assert world.asked(world.side).key == "b"
    world.answer(world.side, Done((1,)))
    assert second.heard[-1] == Done((1,))
    assert not world.hurried
    # As many as there may be, and no more.
    for number in range(10):
        lock(str(number)).ask(claim(str(number)), 60)
        world.pass_to(world.now + STUCK)
    assert len(world.hub.lines) == MOST_LINES
    world.answer(world.main, Done((1,)))
    assert stuck.heard[-1] == Done((1,))


def test_what_was_opened_beside_a_stuck_one_goes_again(world: World, lock: Callable[[str], Lock]) -> None:
    lock("k").keep(60)
    for key in "ab":
        lock(key).ask(Inspect(key), 60)
        world.pass_to(world.now + STUCK)
    first, second = world.hub.lines[1:]
    world.answer(second, Done((1,)))
    world.answer(first, Unanswered())
    world.pass_to(world.now + IDLE)
    assert world.hub.lines == [world.main, first]


def test_renewals_wait_for_nothing_else(world: World, lock: Callable[[str], Lock]) -> None:
    """A claim was begun when nothing was renewed, and is not answered."""
    stuck = lock("a").ask(claim("a"), 60)
    before = world.main
    lock("k").keep(10)
    world.pass_to(110)
    assert world.main is not before
    assert world.asked(world.main).keys == ["k", "k"]
    world.answer(before, Done((1,)))
    assert stuck.heard[-1] == Done((1,))


def test_a_renewal_waits_for_a_beat_that_is_under_way_but_not_for_long(
    world: World, lock: Callable[[str], Lock]
) -> None:
    """A claim went over the line before, which counts no more; and a lease with little time must not be lost for it."""
    lock("a").ask(claim("a"))
    world.answer(world.main, Done((1,)))
    lock("long").keep(10, seconds=20)
    world.pass_to(109.9)
    lock("short").keep(0.2, seconds=1)
    world.pass_to(110)
    beat = world.main
    assert world.asked(beat).keys == ["long", "long"]
    world.pass_to(110.2)
    assert world.main is beat
    world.pass_to(world.alarm)
    assert world.now == 110 + STUCK
    assert world.main is not beat
    assert world.asked(world.main).keys == ["short", "short"]


def test_renewals_do_not_stay_behind_a_claim_when_another_line_has_nothing_to_do_any_more(
    world: World, lock: Callable[[str], Lock]
) -> None:
    for number in range(MOST_LINES):
        lock(str(number)).ask(claim(str(number)), 60)
        world.pass_to(world.now + STUCK)
    assert all(line.job for line in world.hub.lines)
    lock("k").keep(10, seconds=30)
    world.pass_to(world.now + 10)
    freed = world.hub.lines[-1]
    world.answer(freed, Done((1,)))
    assert world.main is freed
    assert world.asked(freed).keys == ["k", "k"]


def test_what_was_behind_in_the_queue_does_not_wait_for_the_next_one_either(
    world: World, lock: Callable[[str], Lock]
) -> None:
    for key in "abc":
        lock(key).ask(claim(key), 60)
    world.pass_to(100.4)
    world.answer(world.main, Done((1,)))
    assert world.asked(world.main).key == "b"
    world.pass_to(100.5)
    assert world.asked(world.side) is None
    world.pass_to(world.alarm)
    assert world.now == 100.4 + STUCK
    assert world.asked(world.side).key == "c"


def test_the_time_of_a_statement_counts_from_its_being_sent(world: World, lock: Callable[[str], Lock]) -> None:
    """A lease that was long in the queue would be over at once; and the clock is not read when one asks for it."""
    sent: list[float | None] = []

    def steps() -> Steps[None]:
        answer = yield Execute(claim("b"), 160)
        assert isinstance(answer, Done)
        sent.append(answer.sent)

    lock("a").ask(claim("a"), 60)
    lock("b").run(steps())
    world.now = 100.3
    world.answer(world.main, Done((1,)))
    world.now = 100.4
    world.answer(world.main, Done((1,)))
    assert sent == [100.3]


def test_whoever_asks_for_another_connection_after_a_failure_gets_one(
    world: World, lock: Callable[[str], Lock]
) -> None:
    lock("a").ask(claim("a"))
    world.answer(world.main, Failed(ERROR))
    lock("b").ask(claim("b"), 10)
    assert world.asked(world.main).key == "b"
    assert world.connects == 2
    assert world.connect_by == 105, "if no other can be opened, there is time left to use this one"
    world.answer(world.main, Done((1,)))
    lock("c").ask(claim("c"))
    assert world.asked(world.main).key == "c"
    assert world.connects == 2


# Leaving


def test_leaving_ends_a_wait_at_once_and_is_told_once(world: World, lock: Callable[[str], Lock]) -> None:
    keeper = lock("k").keep(10)
    keeper.leave()
    assert keeper.ended == [(None, None)]
    keeper.leave()
    assert keeper.ended == [(None, None)]


def test_one_that_is_left_in_mid_step_hears_it_with_the_next(world: World, lock: Callable[[str], Lock]) -> None:
    """A loss that is noticed may end the run that noticed it."""
    read, heard = lock("a"), []

    def steps() -> Steps[None]:
        yield Wait(100)
        yield Wait(101)
        world.hub.request(read.member)
        heard.append((yield Wait(200)))
        world.hub.request(read.member)
        heard.append((yield Execute(claim("a"), 200)))

    read.run(steps())
    world.pass_to(101)
    assert heard == [Done(leave=True)]
    world.pass_to(101 + LINGER)
    world.pass_to(101 + LINGER + 0.06)
    assert heard[1:] == [Unanswered(leave=True)]


def test_leaving_hurries_a_statement_that_nobody_else_waits_for(world: World, lock: Callable[[str], Lock]) -> None:
    asked = lock("a").ask(claim("a"))
    asked.leave()
    assert world.hurried == [world.main]
    world.answer(world.main, Done((1,), leave=True))
    assert asked.heard[-1] == Done((1,), leave=True)


def test_leaving_a_beat_leaves_the_others_their_time(world: World, lock: Callable[[str], Lock]) -> None:
    a, b = lock("a").keep(10), lock("b").keep(10)
    world.pass_to(110)
    a.leave()
    assert not world.hurried
    world.pass_to(110 + LINGER)
    world.pass_to(110 + LINGER + 0.06)
    assert a.heard == [Unanswered(leave=True)], "its value may arrive all the same"
    world.answer(world.main, confirmed(0, 1))
    assert b.heard == [Done((Moved(7, 1, "host:1", 2),))]
    assert len(a.heard) == 1


def test_a_statement_that_still_queues_when_its_lock_is_left_is_not_waited_for(
    world: World, lock: Callable[[str], Lock]
) -> None:
    lock("a").ask(claim("a"))
    second = lock("b").ask(claim("b"))
    second.leave()
    world.pass_to(100 + LINGER)
    assert second.heard[-1] == Failed(Failure(NOT_SENT), leave=True)


# Coming and going


def test_the_side_connection_is_closed_when_it_was_idle_for_a_while(world: World, lock: Callable[[str], Lock]) -> None:
    lock("k").keep(60)
    read = lock("a").ask(Inspect("a"))
    world.answer(world.side, Done((1,)))
    world.hub.leave(read.seat)
    world.pass_to(100 + STUCK)
    assert world.side.connected
    assert world.alarm == 100 + IDLE
    world.pass_to(100 + IDLE)
    assert not world.side.connected
    assert world.main.connected is False, "it was not needed yet"


def test_with_the_last_lock_everything_is_closed(world: World, lock: Callable[[str], Lock]) -> None:
    keeper = lock("k").keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed())
    world.answer(world.side, Done((Moved(7, 1, "host:1", 2),)))
    assert world.main.connected
    assert world.side.connected
    keeper.leave()
    assert not world.hub.over, "it is not closed yet"
    world.hub.leave(keeper.seat)
    world.settle()
    assert not keeper.seat.open
    assert world.hub.over
    assert not world.running
    assert not world.main.connected
    assert not world.side.connected


def test_closing_is_a_step_of_the_lock_itself(world: World, lock: Callable[[str], Lock]) -> None:
    def steps() -> Steps[str]:
        yield Connect(0, 110)
        yield Execute(Inspect("a"), 110)
        yield Close()
        return "result"

    read = lock("a").run(steps())
    assert read.seat.open
    world.answer(world.main, Done((1,)))
    assert not read.seat.open
    assert read.ended == [("result", None)]
    assert world.hub.over
    assert not world.main.connected


def test_one_that_fails_takes_no_other_along(world: World, lock: Callable[[str], Lock]) -> None:
    def faulty() -> Steps[None]:
        yield Wait(110)
        yield Execute(lock("x").renewal(), 120)
        raise ZeroDivisionError

    broken, whole = lock("x").run(faulty(), keeps=True), lock("k").keep(10)
    world.pass_to(110)
    world.answer(world.main, confirmed(0, 1))
    assert isinstance(broken.ended[0][1], ZeroDivisionError)
    assert len(whole.heard) == 1


def test_a_line_that_broke_down_answers_what_was_under_way_and_is_begun_again(
    world: World, lock: Callable[[str], Lock]
) -> None:
    for error, ended in ((None, []), (ValueError("fault"), "fault")):
        asked = lock("a").ask(claim("a"))
        assert world.asked(world.main)
        del world.running[world.main], world.steps[world.main]
        world.hub.stopped(world.main, error)
        if error is None:
            assert asked.heard[-1] == Unanswered()
        else:
            assert str(asked.ended[0][1]) == ended
            assert not asked.seat.open
    world.pass_to(120)
    assert len(asked.ended) == 1, "what has ended is not gone on with"
    lock("b").ask(claim("b"))
    assert world.asked(world.main).key == "b"
    assert world.connects == 3


def test_what_waits_behind_a_line_that_broke_down_is_sent(world: World, lock: Callable[[str], Lock]) -> None:
    lock("a").ask(claim("a"))
    lock("b").ask(claim("b"))
    assert world.asked(world.main).key == "a"
    del world.running[world.main], world.steps[world.main]
    world.hub.stopped(world.main)
    assert world.asked(world.main).key == "b"
