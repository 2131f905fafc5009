"""One connection that is shared: how it connects for whom, and which connections there are."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import pytest

from dislock.protocol.plan import Senses
from dislock.protocol.sharing_lines import Line, Lines
from dislock.protocol.sharing_tickets import Job, Member, Seat, Ticket
from dislock.protocol.statements import ClaimLease, Inspect, MoveExpiry, RenewMany
from dislock.protocol.steps import Answer, Connect, Done, Execute, Failed, Failure, Step

REFUSED = Failed(Failure("too many connections"))
LEFT = REFUSED._replace(leave=True)
STUCK, MOST_LINES = 0.5, 4


class Hub:
    """What a line asks of its hub, by hand."""

    alone, keeping = True, False

    def __init__(self) -> None:
        self.now = 100.0
        self.jobs: list[Job] = []
        self.answers: list[Answer] = []
        self.line = self.main = Line(self, ("db",), Senses(lambda: self.now, lambda: 0.0, lambda: 0.5, lambda _: None))

    def next_job(self, _: Line) -> Job | None:
        return self.jobs.pop(0) if self.jobs else None

    def answer(self, ticket: Ticket, answer: Answer) -> None:
        ticket.answered = True
        self.answers.append(answer)

    def confirm(self, tickets: Sequence[Ticket], answer: Answer, *, connected: bool) -> None:
        assert connected is self.line.connected
        for ticket in tickets:
            self.answer(ticket, answer)

    def unused(self, _: Line) -> bool:
        return False

    def idle_at(self, _: float) -> None:
        pass

    def work(self, *tickets: Ticket, answers: Sequence[Answer]) -> list[Step]:
        """The steps of one job; what is not answered otherwise succeeds, and then the job is over."""
        self.jobs.append(Job(tickets, beat=len(tickets) > 1))
        steps, done, given = self.line.serve(), list[Step](), list(answers)
        answer: Answer | None = None
        while True:
            try:
                step = steps.send(answer)  # type: ignore[arg-type] # None starts it
            except StopIteration:
                return done
            done.append(step)
            answer = given.pop(0) if given else Done(((),) if isinstance(step, Execute) else ())


def ticket(by: float = 110.0, statement: Any = None) -> Ticket:
    member = Member(Seat(), (_ for _ in ()), lambda *_: None, copy_context(), keeps=True)
    return Ticket(member, statement or Inspect("a"), by)


@pytest.fixture
def hub() -> Hub:
    return Hub()


def kinds(steps: Sequence[Step]) -> list[type]:
    return [type(step) for step in steps]


def test_a_server_that_refuses_is_asked_once(hub: Hub) -> None:
    assert kinds(hub.work(ticket(), answers=[REFUSED])) == [Connect]
    assert hub.answers == [REFUSED]
    assert not hub.line.connected


def test_whoever_leaves_takes_no_connection_from_those_who_stay(hub: Hub) -> None:
    steps = hub.work(ticket(), answers=[LEFT, LEFT])
    assert kinds(steps) == [Connect, Connect, Connect, Execute]
    assert {step.by for step in steps if isinstance(step, Connect)} == {110.0}
    assert hub.answers == [Done(((),))]


def test_it_is_enough_that_one_of_a_beat_stays(hub: Hub) -> None:
    left, stays = (ticket(statement=MoveExpiry(key, "host:1", "9s", [1], 2)) for key in "ab")
    left.answered = True
    steps = hub.work(left, stays, answers=[LEFT])
    assert kinds(steps) == [Connect, Connect, Execute]
    assert isinstance(steps[-1], Execute)
    assert isinstance(steps[-1].statement, RenewMany)


def test_nobody_connects_for_those_who_have_left(hub: Hub) -> None:
    left = ticket()
    left.answered = True
    assert kinds(hub.work(left, answers=[LEFT])) == []
    both = [ticket(statement=MoveExpiry(key, "host:1", "9s", [1], 2)) for key in "ab"]
    for each in both:
        each.answered = True
    assert kinds(hub.work(*both, answers=[LEFT])) == [Connect]


@pytest.mark.parametrize("statement", [ClaimLease("a", "host:1", "9s", 10), Inspect("a")])
def test_what_was_answered_while_the_connection_was_opened_is_not_sent(hub: Hub, statement: Any) -> None:
    """Its owner was told that nothing was sent: nobody would give the lock back."""
    left = ticket(statement=statement)
    hub.jobs.append(Job([left], beat=False))
    steps = hub.line.serve()
    assert isinstance(next(steps), Connect)
    left.answered = True
    with pytest.raises(StopIteration):
        steps.send(Done())
    assert hub.answers == []
    assert hub.line.connected


@pytest.mark.parametrize(("left", "tries"), [(0.02, 1), (0.025, 2)])
def test_nobody_connects_for_what_cannot_be_sent_any_more(hub: Hub, left: float, tries: int) -> None:
    steps = hub.work(ticket(by=100.0 + left), answers=[LEFT, REFUSED])
    assert kinds(steps) == [Connect] * tries


def test_if_there_is_no_other_connection_the_stale_one_is_used(hub: Hub) -> None:
    hub.work(ticket(), answers=[])
    hub.line.stale = True
    assert kinds(hub.work(ticket(), answers=[REFUSED])) == [Connect, Execute]
    assert hub.answers == [Done(((),))] * 2
    assert kinds(hub.work(ticket(), answers=[])) == [Execute], "it was tried, and that is that"


# Which lines there are


class World:
    """Lines of which the test says what they do."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines = Lines(lambda: Hub().line, lambda: self.now)

    def busy(self, line: Line | None, begun: float = 100.0) -> Line:
        assert line is not None
        line.running, line.job, line.begun = True, [ticket()], begun
        return line


@pytest.fixture
def world() -> World:
    return World()


def test_there_are_two_lines_until_one_is_stuck(world: World) -> None:
    lines = world.lines
    assert lines.all == [lines.main, *lines.sides]
    assert len(lines.sides) == 1
    assert lines.next_carrier(keeping=False) is lines.main
    assert lines.next_carrier(keeping=True) is lines.sides[0]
    world.busy(lines.main)
    assert lines.next_carrier(keeping=False) is None, "it is at work"
    world.now += STUCK
    assert lines.next_carrier(keeping=False) is lines.sides[0]


def test_each_stuck_line_has_one_more_beside_it_up_to_four(world: World) -> None:
    lines, known = world.lines, []
    for _ in range(MOST_LINES - 1):
        line = world.busy(lines.next_carrier(keeping=True), world.now)
        assert line not in known
        assert line is lines.sides[-1]
        known.append(line)
        world.now += STUCK
    assert lines.next_carrier(keeping=True) is None
    assert len(lines.all) == MOST_LINES


def test_a_line_that_ends_its_run_is_waited_for(world: World) -> None:
    """It asks for its next job by itself."""
    world.lines.sides[0].running = True
    world.now += 10 * STUCK
    assert world.lines.next_carrier(keeping=True) is None


def test_renewals_go_to_a_line_that_has_nothing_under_way(world: World) -> None:
    lines = world.lines
    main, side = world.busy(lines.main), lines.sides[0]
    lines.replace_main()
    assert (lines.main, lines.sides) == (side, [main])


@pytest.mark.parametrize("stuck", range(2, MOST_LINES + 1))
def test_renewals_have_a_line_of_their_own_as_long_as_there_may_be_one_more(world: World, stuck: int) -> None:
    lines = world.lines
    world.busy(lines.main)
    for _ in range(stuck - 1):
        world.busy(lines.next_carrier(keeping=True), world.now)
        world.now += STUCK
    before = lines.all
    lines.replace_main()
    if stuck < MOST_LINES:
        assert lines.main not in before
        assert lines.sides == [*before[1:], before[0]]
    else:
        assert lines.all == before


@pytest.mark.parametrize("connected", [False, True])
def test_a_further_line_goes_with_its_connection(world: World, connected: bool) -> None:
    lines = world.lines
    first = world.busy(lines.sides[0])
    world.now += STUCK
    further = lines.next_carrier(keeping=True)
    assert further is not None
    further._connected = connected
    for line in (lines.main, first, further):
        lines.forget(line)
    assert lines.sides == ([first, further] if connected else [first])
