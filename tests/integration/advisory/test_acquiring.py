"""``lock()`` and ``lock_immediate()``: what they promise of the lock, the wait and the transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from pg_advisory_lock import PgAdvisoryLockError, PgAdvisoryLockNotAcquired, PgAdvisoryLockTimeout
from pg_advisory_lock.sqlstate import sqlstate
from tests.integration.advisory.actors import EACH_DRIVER, EACH_LIBRARY, EACH_WAY_TO_LOCK, SYNC_AND_ASYNC, Actor
from tests.integration.advisory.observer import Observer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]


@pytest.mark.parametrize(("way", "method", "end"), EACH_WAY_TO_LOCK)
def test_the_lock_excludes_until_its_transaction_ends(enter: Enter, way: str, method: str, end: str) -> None:
    one, other = enter(way), enter(way)
    assert getattr(one, method)() is True
    assert not other.can_lock()
    assert other.can_lock("users", 2)
    getattr(one, end)()
    assert other.can_lock()


def test_an_immediate_refusal_says_who_is_in_the_way(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.sql("SET application_name = 'payments'")
    one.lock()
    pid = one.pid
    with pytest.raises(PgAdvisoryLockNotAcquired, match=rf"\['users', '1'\].*pid {pid} \(payments\) holds") as caught:
        other.lock_immediate()
    assert type(caught.value) is PgAdvisoryLockNotAcquired
    assert [(h.pid, h.application_name, h.mode, h.granted) for h in caught.value.holders] == [
        (pid, "payments", "exclusive", True)
    ]
    assert caught.value.lock_args == ("users", "1")
    assert other.sql("SELECT 1") == 1


@pytest.mark.parametrize("way", EACH_DRIVER)
def test_a_timeout_says_so_and_leaves_the_transaction_usable(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    other.sql("INSERT INTO payment VALUES (1, 'before')")
    other.sql("SET LOCAL lock_timeout = '7s'")
    began = time.monotonic()
    with pytest.raises(PgAdvisoryLockTimeout, match="within 120 ms: pid") as caught:
        other.lock(timeout_in_ms=120)
    assert time.monotonic() - began >= 0.12
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert sqlstate(caught.value.__cause__) == "55P03"
    assert [h.pid for h in caught.value.holders] == [one.pid]
    assert other.sql("SHOW lock_timeout") == "7s"
    other.sql("INSERT INTO payment VALUES (2, 'after')")
    other.commit()
    assert one.sql("SELECT count(*) FROM payment") == 3


def test_in_boolean_mode_contention_is_false(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    other.sql("SET LOCAL lock_timeout = '7s'")
    assert other.lock(timeout_in_ms=50, raise_on_failure=False) is False
    assert other.lock_immediate(raise_on_failure=False) is False
    assert other.sql("SHOW lock_timeout") == "7s"


def test_no_time_to_wait_is_a_timeout_at_once(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock(timeout_in_ms=0)
    with other.counting() as statements:
        assert other.lock(timeout_in_ms=0, raise_on_failure=False) is False
    assert len(statements) == 1
    with pytest.raises(PgAdvisoryLockTimeout) as caught:
        other.lock(timeout_in_ms=0)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_a_waiter_gets_the_lock_and_keeps_it(enter: Enter, way: str, observer: Observer, meanwhile: Meanwhile) -> None:
    one, other, third = enter(way), enter(way), enter()
    one.lock()
    other.sql("SET LOCAL lock_timeout = '7s'")
    waiting = meanwhile(other.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    assert not waiting.done()
    one.commit()
    assert waiting.result(20) is True
    # The savepoint of the wait is released by now; the lock belongs to the transaction.
    assert not third.can_lock()
    assert other.sql("SHOW lock_timeout") == "7s"
    other.sql("INSERT INTO payment VALUES (1, 'guarded')")
    other.commit()
    assert third.can_lock()
    # What was said of the transaction has ended with it.
    assert other.sql("SHOW lock_timeout") == "0"


def test_a_lock_timeout_that_the_transaction_set_for_the_session_outlives_it(
    enter: Enter, way: str, observer: Observer, meanwhile: Meanwhile
) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    other.sql("SET lock_timeout = '7s'")
    waiting = meanwhile(other.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    one.commit()
    assert waiting.result(20)
    other.commit()
    assert other.sql("SHOW lock_timeout") == "7s"


def test_functions_of_the_same_name_on_the_search_path_do_not_answer(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    for name in ("pg_try_advisory_xact_lock", "pg_advisory_xact_lock"):
        # Made in a transaction that is rolled back.
        other.sql(f"CREATE FUNCTION public.{name}(bigint) RETURNS bool LANGUAGE sql AS 'SELECT true'")
    other.sql("SET LOCAL search_path = public, pg_catalog")
    one.lock()
    assert other.lock(timeout_in_ms=10, raise_on_failure=False) is False


def test_a_free_lock_is_one_statement_and_a_contended_one_five(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    other.sql("SELECT 1")
    with one.counting() as statements:
        one.lock()
        one.lock_immediate("users", 2)
    assert len(statements) == 2
    with other.counting() as statements:
        other.lock(timeout_in_ms=10, raise_on_failure=False)
    assert [statement.split()[0] for statement in statements] == ["SELECT", "SAVEPOINT", "WITH", "ROLLBACK", "RELEASE"]
    with other.counting() as statements:
        other.lock_immediate(raise_on_failure=False)
    assert len(statements) == 1


def test_a_shorter_lock_timeout_of_the_caller_neither_ends_the_wait_nor_is_mistaken(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    one.sql("SELECT * FROM payment FOR UPDATE")
    other.sql("SET LOCAL lock_timeout = '20ms'")
    began = time.monotonic()
    assert other.lock(timeout_in_ms=300, raise_on_failure=False) is False
    assert time.monotonic() - began >= 0.3
    with pytest.raises(DBAPIError) as caught:
        other.sql("SELECT * FROM payment FOR UPDATE")
    assert sqlstate(caught.value) == "55P03"


def test_a_deadlock_is_not_contention_and_leaves_the_transaction_usable(
    enter: Enter, way: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, victim = enter(way), enter(way)
    # Whose check comes first is the victim.
    one.sql("SET LOCAL deadlock_timeout = '60s'")
    victim.sql("SET LOCAL deadlock_timeout = '20ms'")
    one.lock("a")
    victim.lock("b")
    victim.sql("INSERT INTO payment VALUES (1, 'before')")
    waiting = meanwhile(one.lock, "b", timeout_in_ms=60_000)
    observer.until_waiting()
    with pytest.raises(DBAPIError) as caught:
        victim.lock("a", timeout_in_ms=30_000, raise_on_failure=False)
    assert sqlstate(caught.value) == "40P01"
    victim.sql("INSERT INTO payment VALUES (2, 'after')")
    victim.commit()
    assert waiting.result(20) is True
    assert one.sql("SELECT count(*) FROM payment") == 3


def test_when_the_timeout_is_shorter_a_deadlock_is_contention(
    enter: Enter, way: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, other = enter(way), enter(way)
    one.lock("a")
    other.lock("b")
    one.sql("SET LOCAL deadlock_timeout = '60s'")
    other.sql("SET LOCAL deadlock_timeout = '60s'")
    waiting = meanwhile(one.lock, "b", timeout_in_ms=60_000)
    observer.until_waiting()
    assert other.lock("a", timeout_in_ms=50, raise_on_failure=False) is False
    other.rollback()
    assert waiting.result(20) is True


@pytest.mark.parametrize("way", SYNC_AND_ASYNC)
def test_a_cancellation_passes_through_with_the_transaction_usable(
    enter: Enter, way: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    other.sql("INSERT INTO payment VALUES (1, 'before')")
    pid = other.pid
    waiting = meanwhile(other.lock, timeout_in_ms=60_000, raise_on_failure=False)
    observer.until_waiting()
    observer.cancel(pid)
    with pytest.raises(DBAPIError) as caught:
        waiting.result(20)
    assert sqlstate(caught.value) == "57014"
    other.commit()
    assert one.sql("SELECT count(*) FROM payment") == 2


def test_a_statement_timeout_passes_through_with_the_transaction_usable(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    other.sql("SET LOCAL statement_timeout = '100ms'")
    with pytest.raises(DBAPIError) as caught:
        other.lock(timeout_in_ms=60_000, raise_on_failure=False)
    assert sqlstate(caught.value) == "57014"
    assert other.sql("SELECT 1") == 1


# The drivers' adapters notice the end of their connection in their own ways, some by a warning.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_a_lost_connection_is_an_error_and_not_contention(
    enter: Enter, way: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, other = enter(way), enter(way)
    one.lock()
    pid = other.pid
    waiting = meanwhile(other.lock, timeout_in_ms=60_000, raise_on_failure=False)
    observer.until_waiting()
    observer.terminate(pid)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the driver's affair; what it is not, ours
        waiting.result(20)
    assert not isinstance(caught.value, PgAdvisoryLockError)
    other.rollback()
    one.commit()
    assert other.can_lock()


@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_the_smallest_and_the_largest_key(enter: Enter, way: str) -> None:
    one, other = enter(way), enter(way)
    for key in (-(2**63), 2**63 - 1, -1, 0, 1, 2**31, 2**32 - 1, 2**32):
        locker = one.locker()
        locker._lock_key = key
        assert one.do(locker.lock(one.handle)) is True
        assert [h.pid for h in one.do(locker.holders(one.handle))] == [one.pid]
        assert other.do(locker.holders(other.handle)) == one.do(locker.holders(one.handle))
        one.rollback()


def test_the_same_transaction_may_take_the_lock_again(enter: Enter, way: str) -> None:
    one = enter(way)
    assert one.lock()
    assert one.lock()
    assert one.lock_immediate()


def test_many_readers_or_one_writer(enter: Enter, way: str, meanwhile: Meanwhile, observer: Observer) -> None:
    one, other, writer = enter(way), enter(way), enter(way)
    assert one.lock(shared=True)
    assert other.lock_immediate(shared=True)
    assert writer.lock(timeout_in_ms=20, raise_on_failure=False) is False
    other.rollback()
    waiting = meanwhile(writer.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    # A reader would be compatible with the holder, but must not pass the writer who waits.
    assert other.lock_immediate(shared=True, raise_on_failure=False) is False
    modes = [(h.mode, h.granted) for h in other.holders()]
    assert modes == [("shared", True), ("exclusive", False)]
    one.commit()
    assert waiting.result(20) is True
    assert other.lock(shared=True, timeout_in_ms=20, raise_on_failure=False) is False
