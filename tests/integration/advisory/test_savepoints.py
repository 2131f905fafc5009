"""Savepoints around the lock and of our own; who is warned of them, and of a second connection."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from pg_advisory_lock import (
    PgAdvisoryLock,
    PgAdvisoryLockLost,
    PgAdvisoryLockNotAcquired,
    PgAdvisoryLockTimeout,
    PgAdvisoryLockWarning,
)
from tests.integration.advisory.actors import Actor, sqlalchemy_url

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


@pytest.mark.parametrize(
    ("mode", "method"),
    [*((mode, "lock") for mode in OTHER_MODES), *(("rollback_only", m) for m in ("lock_immediate", "held"))],
)
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


def test_a_savepoint_of_the_session_s_connection_counts_too(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-session")
    connection = one.do(one.handle.connection())
    around = one.do(connection.begin_nested())
    assert warned(one)
    one.do(around.rollback())
    assert not warned(one)


def test_a_session_that_joined_a_connection_without_a_savepoint_is_not(enter: Enter, driver: str) -> None:
    one = enter(f"{driver}-connection")
    one.do(one.handle.begin())
    one.join("rollback_only")
    assert not warned(one)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
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


@pytest.mark.parametrize("end", ["timeout", "refusal", "untold refusal", "statement timeout", "lock"])
def test_every_end_of_a_wait_leaves_the_transaction_at_its_own_level(enter: Enter, end: str) -> None:
    one, other = enter(), enter()
    other.lock()
    one.sql("SET LOCAL lock_timeout = '7s'")
    if end == "timeout":
        with pytest.raises(PgAdvisoryLockTimeout):
            one.lock(timeout_in_ms=10)
    elif end == "refusal":
        with pytest.raises(PgAdvisoryLockNotAcquired, match="pid"):
            one.lock_immediate()
    elif end == "untold refusal":
        other.sql("REVOKE EXECUTE ON FUNCTION pg_lock_status FROM PUBLIC")
        other.sql("CREATE ROLE cannot_ask")
        other.commit()
        other.lock()
        one.sql("SET LOCAL ROLE cannot_ask")
        with pytest.raises(PgAdvisoryLockNotAcquired, match="could not be read"):
            one.lock_immediate()
        other.sql("DROP ROLE cannot_ask")
        other.sql("GRANT EXECUTE ON FUNCTION pg_lock_status TO PUBLIC")
        other.commit()
    elif end == "statement timeout":
        one.sql("SET LOCAL statement_timeout = '50ms'")
        with pytest.raises(DBAPIError):
            one.lock(timeout_in_ms=60_000)
    else:
        other.rollback()
        assert one.lock()
    # A savepoint that is still there would refuse this.
    assert one.sql("SELECT pg_export_snapshot()")
    assert one.sql("SHOW lock_timeout") == "7s"


def test_warned_of_a_second_connection_because_they_commit_one_after_the_other(conninfo: str) -> None:
    first, second = (create_engine(sqlalchemy_url(conninfo, "psycopg")) for _ in range(2))
    locker = PgAdvisoryLock(["users", 1])
    with Session(first) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert locker.lock(session)
            with locker.held(session):
                pass
        # Opened inside the block.
        with pytest.warns(PgAdvisoryLockWarning, match="more than one connection"), locker.held(session):
            session.connection(bind_arguments={"bind": second})
        with pytest.warns(PgAdvisoryLockWarning, match="more than one connection") as caught:
            assert locker.lock_immediate(session)
        assert [warning.filename for warning in caught] == [__file__]
        # A connection has no other beside it.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert locker.lock(session.connection())
    first.dispose()
    second.dispose()
