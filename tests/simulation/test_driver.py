"""The simulated driver keeps the same duties as the other two."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any

import pytest

from dislock.drivers.cancellation import CANCEL
from dislock.errors import LockNotAcquiredError
from dislock.protocol.statements import ReadClock, Statement
from dislock.protocol.steps import (
    LINGER,
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
from tests.simulation.driver import Leave, Simulated

BROKEN = Failure("reset", broken=True)


class Clockwork:
    """A world that answers after the seconds that the test names; None: never."""

    def __init__(
        self, connecting: float | None = 1.0, executing: float | None = 1.0, outcome: Any = (((7, "UTC"),), False)
    ) -> None:
        self.now = 100.0
        self.connecting, self.executing, self.outcome = connecting, executing, outcome
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.links = 0
        self.open: set[object] = set()
        self.cancelled: list[float] = []

    def clock(self) -> float:
        return self.now

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self.calls, (moment, len(self.calls) + 1000 * int(moment), callback))

    def connect(self, target: int, answer: Callable[[object], None]) -> None:
        def accept() -> None:
            self.links += 1
            self.open.add(self.links)
            answer(self.links)

        if self.connecting is not None:
            self.call_at(self.now + self.connecting, accept)

    def execute(self, link: object, statement: Statement, answer: Callable[[Any], None]) -> None:
        assert link in self.open
        if self.executing is not None:
            self.call_at(self.now + self.executing, lambda: answer(self.outcome))

    def cancel(self, link: object) -> None:
        self.cancelled.append(self.now)

    def abandon(self, link: object) -> None:
        self.open.remove(link)

    def run(self) -> None:
        while self.calls:
            self.now, _, call = heapq.heappop(self.calls)
            call()


Heard = list[tuple[float, Answer]]


def carry_out(world: Clockwork, steps: list[Step], leave_at: float | None = None) -> Heard:
    """Has the steps carried out; when each answer came, and what it was."""
    heard: Heard = []

    def protocol() -> Steps[str]:
        for step in steps:
            answer = yield step
            heard.append((world.now, answer))
        return "result"

    ended: list[Any] = []
    driver, leave = Simulated(world), Leave()
    driver.run(protocol(), leave, lambda result, error: ended.append((result, error)))
    if leave_at is not None:
        world.call_at(leave_at, lambda: driver.request(leave))
    world.run()
    assert ended == [("result", None)]
    return heard


READ = ReadClock()


def test_steps_are_carried_out_one_after_the_other() -> None:
    world = Clockwork()
    heard = carry_out(world, [Wait(105), Connect(0, 110), Execute(READ, 120), Close()])
    assert heard == [(105, Done()), (106, Done()), (107, Done(((7, "UTC"),))), (107, Done())]
    assert not world.open
    assert not world.cancelled


def test_every_step_is_over_when_its_time_is_up() -> None:
    assert carry_out(Clockwork(connecting=None), [Connect(0, 110)]) == [(110, Unanswered())]
    world = Clockwork(executing=None)
    assert carry_out(world, [Connect(0, 110), Execute(READ, 120)])[1] == (120, Unanswered())
    assert not world.open, "a connection that did not answer is not used again"
    assert world.cancelled == [pytest.approx(120 - CANCEL)]


def test_an_answer_after_its_step_is_over_is_not_heard() -> None:
    world = Clockwork(connecting=20)
    assert carry_out(world, [Connect(0, 110), Wait(140)]) == [(110, Unanswered()), (140, Done())]
    assert not world.open, "the late connection was closed"
    world = Clockwork(executing=20)
    assert carry_out(world, [Connect(0, 110), Execute(READ, 110), Wait(140)])[1:] == [
        (110, Unanswered()),
        (140, Done()),
    ]


def test_an_error_breaks_a_connection_or_does_not() -> None:
    for failure, left in ((BROKEN, 0), (Failure("no"), 1)):
        world = Clockwork(outcome=failure)
        assert carry_out(world, [Connect(0, 110), Execute(READ, 120)])[1] == (102, Failed(failure))
        assert len(world.open) == left


def test_a_new_connection_takes_the_place_of_the_old_one() -> None:
    world = Clockwork()
    carry_out(world, [Connect(0, 110), Connect(0, 110)])
    assert world.open == {2}


@pytest.mark.parametrize("step", [Wait(130), Connect(0, 130)])
def test_leaving_ends_a_wait_and_a_connect_at_once_and_is_told_once(step: Step) -> None:
    heard = carry_out(Clockwork(connecting=None), [step, Wait(140)], leave_at=103)
    assert [moment for moment, _ in heard] == [103, 140]
    assert [answer.leave for _, answer in heard] == [True, False]


def test_leaving_lets_a_statement_linger_and_cancels_it() -> None:
    world = Clockwork(executing=0.5)
    heard = carry_out(world, [Connect(0, 110), Execute(READ, 130)], leave_at=101.2)
    assert heard[1] == (101.5, Done(((7, "UTC"),), leave=True))
    world = Clockwork(executing=None)
    heard = carry_out(world, [Connect(0, 110), Execute(READ, 130)], leave_at=105)
    assert heard[1] == (105 + LINGER, Unanswered(leave=True))
    assert world.cancelled
    assert 105 < world.cancelled[0] < 105 + LINGER


def test_a_request_before_the_run_is_told_to_its_first_step() -> None:
    for step, answer in (
        (Wait(130), Done(leave=True)),
        (Connect(0, 130), Unanswered(leave=True)),
        (Close(), Done(leave=True)),
    ):
        world, leave = Clockwork(), Leave()
        heard: list[Answer] = []

        def protocol(step: Step = step, heard: list[Answer] = heard) -> Generator[Step, Answer, None]:
            heard.append((yield step))

        leave.requested = True
        Simulated(world).run(protocol(), leave, lambda *_: None)
        assert heard == [answer]
        assert world.now == 100


def test_what_a_protocol_raises_is_handed_over() -> None:
    def protocol() -> Steps[None]:
        yield Close()
        raise LockNotAcquiredError("held")

    ended: list[Any] = []
    Simulated(Clockwork()).run(protocol(), Leave(), lambda result, error: ended.append((result, error)))
    assert ended[0][0] is None
    assert isinstance(ended[0][1], LockNotAcquiredError)
