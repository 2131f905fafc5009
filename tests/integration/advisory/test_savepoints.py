"""Who is warned that the lock will live in a savepoint, and who is not."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockLost, PgAdvisoryLockWarning
from tests.integration.advisory.actors import DRIVERS, Actor, sqlalchemy_url

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
OTHER_MODES = ["conditional_savepoint", "rollback_only", "control_fully"]


def warned(actor: Actor, method: str = "lock") -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if method == "held":
            with actor.held():
                pass
        else:
            getattr(actor, method)()
    assert [warning.category for warning in caught] in ([], [PgAdvisoryLockWarning])
    return bool(caught)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("method", ["lock", "lock_immediate", "held"])
def test_a_session_that_joined_a_connection_inside_a_savepoint_is_warned(
    enter: Enter, driver: str, mode: str, method: str
) -> None:
    one, other = enter(f"{driver}-connection"), enter()
    one.do(one.handle.begin())
    around = one.do(one.handle.begin_nested())
    one.join(mode)
    assert warned(one, method)
    assert not other.can_lock()
    if mode == "conditional_savepoint":
        # Here the session's transaction is a savepoint in the savepoint.
        one.commit()
        assert not other.can_lock()
    one.do(around.rollback())
    assert other.can_lock()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_savepoint_of_the_session_s_connection_counts_too(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-session")
    connection = one.do(one.handle.connection())
    around = one.do(connection.begin_nested())
    assert warned(one)
    one.do(around.rollback())
    assert not warned(one)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_session_that_joined_a_connection_without_a_savepoint_is_not(enter: Enter, driver: str, mode: str) -> None:
    one = enter(f"{driver}-connection")
    one.do(one.handle.begin())
    one.join(mode)
    assert not warned(one)


@pytest.mark.parametrize("driver", DRIVERS)
def test_in_the_recipe_for_test_suites_only_savepoints_of_the_program_under_test_count(
    enter: Enter, driver: str
) -> None:
    one = enter(f"{driver}-connection")
    one.do(one.handle.begin())
    one.join("create_savepoint")
    assert not warned(one)
    with one.savepoint():
        assert warned(one)
    # The connection itself cannot tell whose savepoint it is.
    session, one.handle = one.handle, one.do(one.handle.connection())
    assert warned(one)
    one.do(session.close())


@pytest.mark.parametrize("driver", DRIVERS)
def test_in_the_recipe_a_rollback_is_told_and_a_commit_keeps_the_lock(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-connection"), enter()
    one.do(one.handle.begin())
    one.join("create_savepoint")
    with one.held():
        one.commit()
        assert not other.can_lock()
    with pytest.raises(PgAdvisoryLockLost, match="savepoint"), one.held("users", 2):
        one.rollback()
        assert one.lock("users", 2)


def test_who_calls_from_nowhere_is_warned_as_well(conninfo: str) -> None:
    greenlet = pytest.importorskip("greenlet")
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))
    with Session(engine) as session, session.begin_nested(), pytest.warns(PgAdvisoryLockWarning):
        # What gevent does with a function: nothing in Python calls it.
        assert greenlet.greenlet(PgAdvisoryLock(["users", 1]).lock).switch(session)
    engine.dispose()


# The connection goes back to its pool by being forgotten.
@pytest.mark.filterwarnings("ignore:The garbage collector is trying to clean up")
def test_a_block_that_is_forgotten_says_nothing_when_it_is_collected(conninfo: str) -> None:
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))

    def forget() -> None:
        connection = engine.connect()
        connection.begin_nested()
        block = PgAdvisoryLock(["users", 1]).held(connection)
        with pytest.warns(PgAdvisoryLockWarning):
            block.__enter__()
        # Collected all at once, and not from the outside in.
        block.itself = block

    forget()
    raised: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, raised.append
    try:
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert raised == []
    engine.dispose()
