"""``holders()``, and what an exception knows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timezone
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockNotAcquired, PgAdvisoryLockTimeout
from pg_advisory_lock.sqlstate import sqlstate
from tests.integration.advisory.actors import SYNC_DRIVERS, Actor, sqlalchemy_url
from tests.integration.advisory.observer import Observer
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]


@pytest.mark.parametrize("driver", [*SYNC_DRIVERS, "asyncpg"])
def test_holders_and_waiters_of_this_key_and_no_other(
    enter: Enter, driver: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    way = f"{driver}-session"
    reader, writer, asker = enter(way), enter(way), enter(way)
    assert asker.holders() == []
    asker.lock("another")
    reader.sql("SET application_name = 'reader'")
    began = reader.sql("SELECT now()")
    reader.lock(shared=True)
    pid = writer.pid
    before_wait = observer.ask("SELECT clock_timestamp()")
    waiting = meanwhile(writer.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    # The server writes the start of a wait down a moment after the wait is to be seen.
    observer.until(lambda: observer.ask("SELECT bool_and(waitstart IS NOT NULL) FROM pg_locks WHERE NOT granted"))
    first, second = asker.holders()
    assert (first.pid, first.application_name, first.mode, first.granted) == (
        reader.pid,
        "reader",
        "shared",
        True,
    )
    assert first.since == began
    assert (second.pid, second.mode, second.granted) == (pid, "exclusive", False)
    assert before_wait <= second.since <= observer.ask("SELECT clock_timestamp()")
    # Asked again in the same transaction: the answer is not the one of before.
    reader.rollback()
    assert waiting.result(20)
    assert [(holder.pid, holder.granted) for holder in asker.holders()] == [(pid, True)]
    writer.rollback()
    newcomer = enter(way)
    newcomer.sql("SET application_name = 'newcomer'")
    newcomer.lock()
    assert [holder.application_name for holder in asker.holders()] == ["newcomer"]


def test_locks_of_other_databases_and_of_two_integers_are_not_seen(
    enter: Enter, server_url: str, observer: Observer
) -> None:
    one = enter()
    key = one.locker().lock_key
    with psycopg.connect(server_url) as elsewhere:
        elsewhere.execute("SELECT pg_advisory_lock(%s::bigint)", [key])
        high, low = (key >> 32), key & 0xFFFFFFFF
        low = low - 2**32 if low >= 2**31 else low
        observer.ask("SELECT pg_advisory_lock(%s::int, %s::int)", high, low)
        assert one.holders() == []
        assert one.lock_immediate()


def test_a_session_level_lock_of_the_same_key_excludes_and_is_seen(enter: Enter, observer: Observer) -> None:
    one = enter()
    key = one.locker().lock_key
    observer.ask("SELECT pg_advisory_lock(%s::bigint)", key)
    with pytest.raises(PgAdvisoryLockNotAcquired) as caught:
        one.lock_immediate()
    assert [holder.pid for holder in caught.value.holders] == [observer.ask("SELECT pg_backend_pid()")]


def test_nobody_is_in_its_own_way(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-session"), enter(f"{driver}-session")
    one.lock(shared=True)
    other.lock(shared=True)
    for take in (one.lock_immediate, lambda: one.lock(timeout_in_ms=20)):
        with pytest.raises(PgAdvisoryLockNotAcquired) as caught:
            take()
        assert [holder.pid for holder in caught.value.holders] == [other.pid]
    assert {holder.pid for holder in one.holders()} == {one.pid, other.pid}


def test_a_session_without_an_encoding_is_told_in_text(enter: Enter) -> None:
    holder, one = enter(), enter()
    holder.sql("SET application_name = 'payments'")
    holder.lock()
    # Here psycopg gives bytes for text.
    one.sql("SET client_encoding = 'SQL_ASCII'")
    with pytest.raises(PgAdvisoryLockNotAcquired, match=r"pid \d+ \(payments\) holds it"):
        one.lock_immediate()
    with one.held("another"):
        pass


def test_since_says_nothing_about_a_lock_of_the_whole_session(enter: Enter, observer: Observer) -> None:
    one, holder = enter(), enter()
    holder.sql("SELECT pg_advisory_lock(:key)", key=holder.locker().lock_key)
    taken = holder.sql("SELECT clock_timestamp()")
    holder.commit()
    assert [found.since for found in one.holders()] == [None]
    began = holder.sql("SELECT now()")
    assert [found.since for found in one.holders()] == [began]
    assert began > taken
    holder.sql("SELECT pg_advisory_unlock_all()")


def test_a_role_that_may_not_look_still_locks(conninfo: str) -> None:
    role = "cannot_look"
    with psycopg.connect(conninfo, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_lock_status FROM PUBLIC")
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg").set(username=role, password="x"))
    locker = PgAdvisoryLock(["users", 1])
    try:
        with Session(engine) as holder, Session(engine) as session:
            locker.lock(holder)
            for take, kind in (
                (lambda: locker.lock_immediate(session), PgAdvisoryLockNotAcquired),
                (lambda: locker.lock(session, timeout_in_ms=20), PgAdvisoryLockTimeout),
            ):
                with pytest.raises(kind, match="could not be read") as caught:
                    take()
                assert caught.value.holders == ()
            # The transaction is usable, and the lock can be had in it, and be checked.
            holder.rollback()
            with locker.held(session):
                pass
            with pytest.raises(DBAPIError) as refused:
                locker.holders(session)
            assert sqlstate(refused.value) == "42501"
    finally:
        engine.dispose()
        with psycopg.connect(conninfo, autocommit=True) as admin:
            admin.execute("GRANT EXECUTE ON FUNCTION pg_lock_status TO PUBLIC")
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.parametrize("way", ["psycopg-session", "pg8000-session", "asyncpg-session"])
def test_since_does_not_depend_on_how_the_session_shows_times(enter: Enter, way: str, observer: Observer) -> None:
    holder, one = enter(), enter(way)
    holder.lock()
    one.sql("SET datestyle = 'SQL, DMY'")
    one.sql("SET timezone = 'Asia/Kolkata'")
    with pytest.raises(PgAdvisoryLockTimeout) as caught:
        one.lock(timeout_in_ms=10)
    began = observer.ask("SELECT xact_start FROM pg_stat_activity WHERE pid = %s", holder.pid)
    assert [found.since for found in caught.value.holders] == [began]
    assert f" since {began.astimezone(timezone.utc).isoformat(timespec='milliseconds')}" in str(caught.value)


@pytest.mark.parametrize(
    ("catalog", "told"), [("pg_database", "holds it exclusive"), ("pg_amop", "its holders could not be read")]
)
def test_the_question_who_is_in_the_way_waits_for_nobody(
    enter: Enter, conninfo: str, meanwhile: Meanwhile, catalog: str, told: str
) -> None:
    holder, one = enter(), enter()
    holder.lock()
    one.sql("SELECT 1")
    with psycopg.connect(conninfo) as vacuum:
        vacuum.execute(sql.SQL("LOCK pg_catalog.{}").format(sql.Identifier(catalog)))
        asking = meanwhile(one.lock_immediate)
        try:
            error = asking.exception(20)
        finally:
            vacuum.rollback()
    assert type(error) is PgAdvisoryLockNotAcquired
    assert told in str(error)


def test_a_full_lock_table_and_a_prepared_transaction() -> None:
    settings = {
        "max_connections": 5,
        "max_locks_per_transaction": 10,
        "max_prepared_transactions": 1,
        "autovacuum_worker_slots": 1,
    }
    with Postgres(settings) as server:
        engine = create_engine(sqlalchemy_url(server.url(), "psycopg"))
        with Session(engine, twophase=True) as session:
            PgAdvisoryLock(["prepared"]).lock(session)
            session.prepare()
            # Its lock belongs to no process now, and lasts until somebody ends the transaction.
            with Session(engine) as other:
                with pytest.raises(PgAdvisoryLockTimeout, match="a prepared transaction holds it") as caught:
                    PgAdvisoryLock(["prepared"]).lock(other, timeout_in_ms=20)
                assert caught.value.holders[0].pid is None
            session.rollback()
        with Session(engine) as session, pytest.raises(DBAPIError) as full:
            for number in range(100_000):
                PgAdvisoryLock(["users", number], raise_on_failure=False).lock(session)
        assert sqlstate(full.value) == "53200"
        engine.dispose()
