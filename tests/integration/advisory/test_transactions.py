"""The transaction that SQLAlchemy sees may not be the server's: then no call says that there is a lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockError, PgAdvisoryLockLost
from tests.integration.advisory.actors import EACH_LIBRARY, SYNC_AND_ASYNC, Actor
from tests.integration.advisory.observer import Observer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]

#: These begin again, with the next statement, a transaction that was ended by text.
BEGIN_AGAIN = {"psycopg", "psycopg_async", "pg8000"}


class Reticent(psycopg2.extensions.connection):
    """A driver's connection that does not tell whether a transaction is open."""

    @property
    def info(self) -> SimpleNamespace:
        # SQLAlchemy wants to know that much.
        return SimpleNamespace(server_version=self.server_version)


RETICENT = {"connect_args": {"connection_factory": Reticent}}


def take(actor: Actor, method: str, **options: Any) -> None:
    if method == "held":
        with actor.held(**options):
            pass
    else:
        assert getattr(actor, method)(**options)


@pytest.mark.parametrize(
    ("way", "ending", "method"),
    [
        *((way, "COMMIT", "lock") for way in EACH_LIBRARY),
        ("asyncpg-session", "COMMIT AND CHAIN", "lock"),
        ("psycopg2-session", "ROLLBACK", "lock_immediate"),
        ("psycopg2-session", "END", "held"),
    ],
)
def test_after_an_end_sent_as_text_the_lock_is_refused_or_holds(
    enter: Enter, way: str, ending: str, method: str
) -> None:
    one, other = enter(way), enter()
    one.sql("SELECT 1")
    one.sql(ending)
    if one.driver in BEGIN_AGAIN or "CHAIN" in ending:
        take(one, method)
        assert not other.can_lock()
        return
    with pytest.raises(PgAdvisoryLockError, match=r"sent as text.*call rollback\(\) first") as caught:
        take(one, method)
    assert type(caught.value) is PgAdvisoryLockError
    assert other.can_lock()
    # The way out that the message gives.
    one.rollback()
    take(one, method)
    assert not other.can_lock()


@pytest.mark.parametrize("way", ["psycopg-session", "psycopg2-session"])
def test_nor_is_anybody_waited_for_in_no_transaction(enter: Enter, way: str) -> None:
    one, other = enter(way), enter()
    other.lock()
    one.sql("SELECT 1")
    one.sql("COMMIT")
    if one.driver in BEGIN_AGAIN:
        assert one.lock(raise_on_failure=False) is False
    else:
        with pytest.raises(PgAdvisoryLockError, match="sent as text"):
            one.lock(raise_on_failure=False)


@pytest.mark.parametrize("way", EACH_LIBRARY)
def test_an_end_sent_as_text_inside_the_block_is_told(enter: Enter, way: str) -> None:
    one = enter(way)
    with one.counting() as statements, pytest.raises(PgAdvisoryLockLost, match="its transaction ended"), one.held():
        one.sql("COMMIT")
    # The driver knew: nothing was begun for the question.
    assert [statement.split()[0] for statement in statements] == ["SELECT", "COMMIT"]


@pytest.mark.parametrize("method", ["lock", "lock_immediate", "held"])
def test_where_the_driver_does_not_tell_the_server_is_asked(enter: Enter, method: str) -> None:
    one, other = enter("psycopg2-session", **RETICENT), enter()
    one.sql("SELECT 1")
    one.sql("COMMIT")
    with pytest.raises(PgAdvisoryLockError, match="sent as text"):
        take(one, method)
    one.rollback()
    with one.counting() as statements:
        take(one, method)
    assert len(statements) == (3 if method == "held" else 2)
    assert not other.can_lock()


def test_where_the_driver_does_not_tell_a_wait_is_as_elsewhere(
    enter: Enter, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, other = enter("psycopg2-session", **RETICENT), enter()
    other.lock()
    assert one.lock_immediate(raise_on_failure=False) is False
    assert one.lock(timeout_in_ms=10, raise_on_failure=False) is False
    waiting = meanwhile(one.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    other.rollback()
    assert waiting.result(20)
    assert not other.can_lock()


def test_a_connection_detached_from_its_pool_is_asked_like_any_other(enter: Enter) -> None:
    one, other = enter("psycopg2-connection"), enter()
    raw = one.handle.connection
    one.handle.detach()
    with one.counting() as statements:
        assert one.lock()
    assert len(statements) == 1
    assert not other.can_lock()
    one.sql("COMMIT")
    with pytest.raises(PgAdvisoryLockError, match="sent as text"):
        one.lock()
    one.rollback()
    one.handle.close()
    raw.close()


@pytest.mark.parametrize("way", SYNC_AND_ASYNC)
def test_while_the_transaction_is_only_being_begun_the_lock_is_refused(enter: Enter, way: str) -> None:
    one, other = enter(way), enter()
    free, taken = PgAdvisoryLock(["users", 1]), PgAdvisoryLock(["users", 2])
    other.lock("users", 2)
    refusals: list[type] = []

    @event.listens_for(one.sync_engine, "begin")
    def lock(connection: Connection) -> None:
        for take in (free.lock, free.lock_immediate, taken.lock, lambda handle: free.held(handle).__enter__()):
            with pytest.raises(PgAdvisoryLockError, match="still being begun") as error:
                take(connection)
            refusals.append(type(error.value))

    one.sql("SELECT 1")
    assert refusals == [PgAdvisoryLockError] * 4


def test_in_the_session_s_own_event_there_is_a_transaction(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-session"), enter()
    locker = PgAdvisoryLock(["users", 1])

    @event.listens_for(one.handle.sync_session if one.is_async else one.handle, "after_begin")
    def lock(_session: Session, _transaction: object, connection: Connection) -> None:
        locker.lock(connection)

    one.sql("SELECT 1")
    assert not other.can_lock()


@pytest.mark.parametrize("way", ["psycopg-session", "psycopg2-session", "pg8000-session"])
def test_a_transaction_that_only_locks_holds_back_no_vacuum_and_no_new_index(
    enter: Enter, way: str, observer: Observer, meanwhile: Meanwhile
) -> None:
    one, other = enter(way), enter()
    snapshot = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = %s"
    pid = one.pid
    for number in range(8):
        # Often enough for psycopg to prepare what it is given.
        assert one.lock()
        assert not observer.ask(snapshot, pid), number
    other.lock("another")
    waiting = meanwhile(one.lock, "another", timeout_in_ms=60_000)
    observer.until_waiting()
    other.rollback()
    assert waiting.result(20)
    assert not observer.ask(snapshot, pid)
    with one.held("a third"):
        assert not observer.ask(snapshot, pid)
