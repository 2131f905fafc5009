"""``held()``: a block that ends well was guarded to its end."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from sqlalchemy.exc import DBAPIError

from pg_advisory_lock import PgAdvisoryLockLost, PgAdvisoryLockTimeout, PgAdvisoryLockWarning
from pg_advisory_lock.sqlstate import sqlstate
from tests.integration.advisory.actors import EACH_LIBRARY, SYNC_AND_ASYNC, Actor
from tests.integration.advisory.observer import Observer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]


@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_a_block_is_guarded_and_the_lock_outlives_it_until_the_transaction_ends(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    with one.counting() as statements, one.held():
        assert not other.can_lock()
        one.sql("INSERT INTO payment VALUES (1, 'guarded')")
    assert len(statements) == 3
    assert not other.can_lock()
    one.commit()
    assert other.can_lock()
    with one.held(shared=True), other.held(shared=True), one.held("users", 2), one.held("users", 3):
        pass
    one.commit()
    # Nothing of it is left for the next transaction.
    assert not one.sql("SELECT current_setting('pg_advisory_lock.held', true)")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_of_the_transaction_inside_is_told(enter: Enter, way: str, end: str) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="its transaction ended"), one.held():
        getattr(one, end)()


def test_another_transaction_after_a_commit_is_not_taken_for_the_first(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="its transaction ended"), one.held():
        one.commit()
        one.lock()


@pytest.mark.parametrize("way", SYNC_AND_ASYNC)
def test_a_commit_behind_sqlalchemy_s_back_is_told(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="another one is open now"), one.held():
        one.sql("COMMIT")
        one.sql("BEGIN")
        one.lock()


def test_a_rollback_to_a_savepoint_around_the_acquisition_is_told(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="savepoint"):
        one.sql("SAVEPOINT around")
        with one.held():
            one.sql("ROLLBACK TO SAVEPOINT around")


def test_also_where_the_lock_was_taken_again_after_it(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="savepoint"):
        one.sql("SAVEPOINT around")
        with one.held():
            one.sql("ROLLBACK TO SAVEPOINT around")
            with one.held():
                one.lock()


@pytest.mark.parametrize("which", ["the one around", "one around that"])
def test_a_lock_that_was_taken_again_after_such_a_rollback_is_not_taken_for_the_first(
    enter: Enter, way: str, which: str
) -> None:
    one, other = enter(way), enter()
    outer = one.do(one.handle.begin_nested())
    inner = one.do(one.handle.begin_nested())
    with pytest.raises(PgAdvisoryLockLost, match="a savepoint around it was rolled back"):
        block = one.held()
        with pytest.warns(PgAdvisoryLockWarning):
            block.__enter__()
        if which == "the one around":
            one.do(inner.rollback())
        else:
            one.do(inner.commit())
            one.do(outer.rollback())
        assert other.can_lock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PgAdvisoryLockWarning)
            one.lock()
        block.__exit__(None, None, None)


def test_the_savepoints_around_may_be_released_and_later_ones_rolled_back(enter: Enter, way: str) -> None:
    one, other = enter(way), enter()
    around = one.do(one.handle.begin_nested())
    block = one.held()
    with pytest.warns(PgAdvisoryLockWarning):
        block.__enter__()
    one.do(one.do(one.handle.begin_nested()).rollback())
    one.do(around.commit())
    # Of the same depth as the one around.
    one.do(one.do(one.handle.begin_nested()).rollback())
    block.__exit__(None, None, None)
    assert not other.can_lock()


def test_savepoints_inside_the_block_do_no_harm(enter: Enter, way: str) -> None:
    one = enter(way)
    with one.held():
        with one.savepoint():
            one.sql("INSERT INTO payment VALUES (1, 'kept')")
        with pytest.raises(ZeroDivisionError), one.savepoint():
            one.sql("INSERT INTO payment VALUES (2, 'undone')")
            raise ZeroDivisionError


def test_the_block_s_own_error_comes_out_as_it_is(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(DBAPIError) as caught, one.held():
        one.sql("INSERT INTO payment VALUES (0, 'twice')")
    assert sqlstate(caught.value) == "23505"


# The drivers' adapters notice the end of their connection in their own ways, some by a warning.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "end"),
    [*((way, "terminated") for way in EACH_LIBRARY), ("psycopg-session", "idle")],
)
def test_a_connection_that_was_lost_inside_is_told_by_the_check(
    enter: Enter, way: str, end: str, observer: Observer
) -> None:
    one = enter(way)
    with pytest.raises(PgAdvisoryLockLost, match="its connection was lost") as caught, one.held():
        pid = one.pid
        if end == "idle":
            one.sql("SET LOCAL idle_in_transaction_session_timeout = 50")
            observer.until(lambda: not observer.ask("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid))
        else:
            observer.terminate(pid)
    assert isinstance(caught.value.__cause__, DBAPIError)
    one.rollback()
    assert one.lock()


# As above.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["psycopg-session", "pg8000-session"])
def test_a_connection_that_was_lost_inside_is_told_though_the_block_hid_it(
    enter: Enter, way: str, observer: Observer
) -> None:
    one, other = enter(way), enter()
    with pytest.raises(PgAdvisoryLockLost, match="its connection was lost"), one.held():
        observer.terminate(one.pid)
        with pytest.raises((DBAPIError, OSError)):
            one.sql("SELECT 1")
        if one.driver == "pg8000":
            # Tells it in one of several ways, and SQLAlchemy does not know all of them.
            (one.handle.connection() if one.kind == "session" else one.handle).invalidate()
    one.rollback()
    assert one.lock()
    assert not other.can_lock()


def test_an_error_that_the_block_hid_is_told_by_the_check(enter: Enter, way: str) -> None:
    one = enter(way)
    with pytest.raises(DBAPIError) as caught, one.held(), pytest.raises(DBAPIError):
        one.sql("INSERT INTO payment VALUES (0, 'twice')")
        # The server has given the whole transaction up; a commit now would silently be a rollback.
    assert sqlstate(caught.value) == "25P02"


def test_contention_raises_even_in_boolean_mode(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    entered = False
    with pytest.raises(PgAdvisoryLockTimeout), other.held(timeout_in_ms=20, raise_on_failure=False):
        entered = True
    assert not entered
    assert other.sql("SELECT 1") == 1


def test_in_a_savepoint_there_is_a_warning_and_the_rollback_takes_the_lock_along(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    with pytest.raises(ZeroDivisionError), one.savepoint():
        with pytest.warns(PgAdvisoryLockWarning, match="begin_nested"):
            one.lock()
        assert not other.can_lock()
        raise ZeroDivisionError
    assert other.can_lock()


def test_the_release_of_a_savepoint_keeps_the_lock(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    with one.savepoint(), pytest.warns(PgAdvisoryLockWarning):
        one.lock_immediate()
    assert not other.can_lock()
    one.rollback()
    assert other.can_lock()


@pytest.mark.parametrize("way", SYNC_AND_ASYNC)
def test_the_warning_names_the_caller_and_comes_before_any_statement(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    with one.savepoint():
        one.sql("SELECT 1")
        for take in (one.lock, one.lock_immediate, one.held().__enter__):
            with one.counting() as statements, pytest.raises(PgAdvisoryLockWarning):
                take()
            assert statements == []
        with pytest.warns(PgAdvisoryLockWarning) as caught:
            one.lock()
    if not one.is_async:
        assert [warning.filename.rsplit("/", 1)[-1] for warning in caught] == ["actors.py"]
    assert not other.can_lock()
