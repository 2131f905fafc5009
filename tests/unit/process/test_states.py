"""The states of a command: each step and each demand, and who carries a demand out."""

from __future__ import annotations

from itertools import product

import pytest

from dislock.process.states import NEXT, Course, Demand, Life


def at(life: Life) -> Course:
    course = Course()
    course.life = life
    return course


@pytest.mark.parametrize(("here", "there"), list(product(Life, Life)))
def test_only_the_listed_steps_are_taken(here: Life, there: Life) -> None:
    course = at(here)
    taken = course.step(there) is not None
    assert taken is (there in NEXT[here])
    assert course.life is (there if taken else here)


def test_a_life_goes_from_the_plan_to_an_end_and_never_back() -> None:
    seen, ends = [Life.PLANNED], set()
    for life in seen:
        seen.extend(NEXT[life] - set(seen))
        if not NEXT[life]:
            ends.add(life)
    assert set(seen) == set(Life)
    assert ends == {Life.REAPED, Life.PREVENTED, Life.FAILED}
    for life in Life:
        assert life not in NEXT[life]


def test_a_start_is_prevented_before_the_fork_and_not_after() -> None:
    prevented = at(Life.PLANNED)
    assert prevented.step(Life.PREVENTED) is not None
    assert prevented.step(Life.STARTING) is None
    starting = at(Life.STARTING)
    assert starting.step(Life.PREVENTED) is None


@pytest.mark.parametrize(
    ("life", "begun", "reachable", "over"),
    [
        (Life.PLANNED, False, False, False),
        (Life.STARTING, True, False, False),
        (Life.RUNNING, True, True, False),
        (Life.ENDED, True, True, True),
        (Life.REAPED, True, False, True),
        (Life.PREVENTED, False, False, True),
        (Life.FAILED, False, False, True),
    ],
)
def test_what_a_state_means(life: Life, begun: bool, reachable: bool, over: bool) -> None:
    assert (life.begun, life.reachable, life.over) == (begun, reachable, over)


def test_a_demand_only_rises() -> None:
    course = at(Life.RUNNING)
    assert course.raise_to(Demand.STOP) is Life.RUNNING
    for weaker in (Demand.STOP, Demand.END, Demand.NOTHING):
        assert course.raise_to(weaker) is None
        assert course.demand is Demand.STOP
    assert course.raise_to(Demand.KILL) is Life.RUNNING


def test_a_demand_before_the_process_is_told_to_whoever_starts_it() -> None:
    course = at(Life.STARTING)
    life = course.raise_to(Demand.KILL)
    assert life is not None
    assert not life.reachable
    assert course.step(Life.RUNNING) is Demand.KILL
