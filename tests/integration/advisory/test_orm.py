"""The lock among the other things that a SQLAlchemy program does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockNotAcquired, PgAdvisoryLockTimeout, PgAdvisoryLockWarning
from pg_advisory_lock.sqlstate import sqlstate
from tests.integration.advisory.actors import SYNC_DRIVERS, Actor, sqlalchemy_url
from tests.integration.advisory.observer import Observer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str | None]


@pytest.fixture
def engine(conninfo: str) -> Iterator[Engine]:
    engine = create_engine(sqlalchemy_url(conninfo, "psycopg"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("method", ["lock", "lock_immediate"])
def test_a_flush_that_fails_is_not_contention(enter: Enter, driver: str, method: str) -> None:
    one = enter(f"{driver}-session")
    one.handle.add(Payment(id=0, note="twice"))
    with pytest.raises(IntegrityError):
        getattr(one, method)(raise_on_failure=False)
    one.rollback()
    assert one.lock()


def test_a_flush_that_runs_into_the_caller_s_lock_timeout_is_not_contention(enter: Enter, driver: str) -> None:
    one, other = enter(f"{driver}-session"), enter(f"{driver}-session")
    one.sql("SELECT * FROM payment FOR UPDATE")
    other.sql("SET LOCAL lock_timeout = '30ms'")
    payment = other.do(other.handle.get(Payment, 0))
    payment.note = "changed"
    with pytest.raises(DBAPIError) as caught:
        other.lock(raise_on_failure=False)
    assert sqlstate(caught.value) == "55P03"
    assert not isinstance(caught.value, PgAdvisoryLockTimeout)


def test_a_timeout_leaves_pending_and_loaded_objects_as_they_were(engine: Engine) -> None:
    locker = PgAdvisoryLock(["users", 1], raise_on_failure=False)
    with Session(engine) as holder, Session(engine) as session:
        locker.lock(holder)
        loaded = session.get(Payment, 0)
        assert loaded is not None
        new = Payment(id=1, note="new")
        session.add(new)
        assert locker.lock(session, timeout_in_ms=20) is False
        assert new in session
        # Not expired: reading it sends nothing.
        assert "note" in loaded.__dict__
        assert "note" in new.__dict__
        session.commit()
        holder.rollback()
        assert session.get(Payment, 1) is new


def test_the_lock_can_be_taken_in_the_middle_of_a_flush(engine: Engine) -> None:
    locker = PgAdvisoryLock(["users", 1])
    with Session(engine) as session, Session(engine) as other:

        @event.listens_for(session, "before_flush")
        def guard(flushing: Session, *_more: object) -> None:
            locker.lock(flushing)

        session.add(Payment(id=1))
        session.flush()
        assert not PgAdvisoryLock(["users", 1], raise_on_failure=False).lock_immediate(other)


def test_a_scoped_session_is_the_session_of_its_scope(engine: Engine) -> None:
    sessions = scoped_session(sessionmaker(engine))
    locker = PgAdvisoryLock([Payment.__table__.name, 1])
    with locker.held(sessions):
        assert [holder.mode for holder in locker.holders(sessions)] == ["exclusive"]
        with Session(engine) as other:
            assert not PgAdvisoryLock(["payment", 1], raise_on_failure=False).lock_immediate(other)
    assert locker.lock(sessions)
    assert locker.lock_immediate(sessions)
    sessions.remove()


@pytest.mark.parametrize(
    ("way", "options"),
    [
        *((f"{driver}-connection", {"stream_results": True}) for driver in (*SYNC_DRIVERS, "asyncpg")),
        ("psycopg-connection", {"yield_per": 10}),
    ],
    ids=str,
)
def test_streaming_puts_nothing_of_ours_into_a_cursor(
    enter: Enter, way: str, options: dict[str, Any], observer: Observer
) -> None:
    one, other = enter(way, execution_options=options), enter()
    assert one.lock()
    # With a cursor, the last that the server heard would be FETCH or CLOSE.
    last = observer.ask("SELECT query FROM pg_stat_activity WHERE pid = %s", other.holders()[0].pid)
    assert last.startswith("SELECT pg_catalog.pg_try_advisory_xact_lock(")
    assert not other.can_lock()
    assert one.holders() == other.holders()
    other.lock("another")
    assert one.lock("another", timeout_in_ms=10, raise_on_failure=False) is False
    for take in (one.lock_immediate, lambda *args: one.lock(*args, timeout_in_ms=10)):
        with pytest.raises(PgAdvisoryLockNotAcquired) as caught:
            take("another")
        assert len(caught.value.holders) == 1
    other.rollback()
    with one.held("another"):
        assert not other.can_lock("another")


def test_an_engine_that_replaces_errors_does_not_hide_contention(engine: Engine) -> None:
    class Replaced(Exception):
        pass

    @event.listens_for(engine, "handle_error", retval=True)
    def replace(_context: object) -> Exception:
        return Replaced("something else")

    locker = PgAdvisoryLock(["users", 1])
    with Session(engine) as holder, Session(engine) as session:
        locker.lock(holder)
        with pytest.raises(PgAdvisoryLockTimeout) as caught:
            locker.lock(session, timeout_in_ms=20)
        assert isinstance(caught.value.__cause__, Replaced)
        assert session.scalar(text("SELECT 1")) == 1


def test_nor_does_an_error_that_keeps_sqlalchemy_s_as_its_own_original(enter: Enter, way: str) -> None:
    class Wrapped(Exception):
        def __init__(self, original: object) -> None:
            self.orig = original

    holder, one = enter(), enter(way)

    @event.listens_for(one.sync_engine, "handle_error", retval=True)
    def wrap(context: Any) -> Exception:
        return Wrapped(context.sqlalchemy_exception)

    holder.lock()
    with pytest.raises(PgAdvisoryLockTimeout) as caught:
        one.lock(timeout_in_ms=20)
    assert isinstance(caught.value.__cause__, Wrapped)
    assert one.sql("SELECT 1") == 1


def test_holders_flush_nothing(engine: Engine) -> None:
    with Session(engine) as session:
        new = Payment(id=1)
        session.add(new)
        PgAdvisoryLock(["users", 1]).holders(session)
        assert new in session.new
        PgAdvisoryLock(["users", 1]).lock(session)
        assert new not in session.new


def test_a_session_in_a_test_s_outer_transaction_is_not_warned(engine: Engine) -> None:
    # The usual recipe for test suites: the session's own transaction is a savepoint of the test's.
    with engine.connect() as connection, connection.begin() as outer, warnings.catch_warnings():
        warnings.simplefilter("error")
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            assert PgAdvisoryLock(["users", 1]).lock(session)
            session.commit()
        outer.rollback()


def test_the_warning_is_shown_once_for_each_place(engine: Engine) -> None:
    with Session(engine) as session, session.begin_nested(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(3):
            PgAdvisoryLock(["users", number]).lock(session)
    assert [(warning.category, warning.filename) for warning in caught] == [(PgAdvisoryLockWarning, __file__)]


@pytest.mark.parametrize(
    ("level", "note"), [("READ COMMITTED", "paid"), ("REPEATABLE READ", "first"), ("SERIALIZABLE", "first")]
)
def test_only_under_read_committed_does_a_waiter_see_what_the_holder_did(
    engine: Engine, level: Any, note: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    # The documented caveat: under the other levels the waiting statement has taken the snapshot.
    locker = PgAdvisoryLock(["users", 1])
    with Session(engine) as first, Session(engine.execution_options(isolation_level=level)) as second:
        locker.lock(first)
        waiting = meanwhile(locker.lock, second, timeout_in_ms=60_000)
        observer.until_waiting()
        first.execute(text("UPDATE payment SET note = 'paid' WHERE id = 0"))
        first.commit()
        assert waiting.result(20)
        assert second.scalar(text("SELECT note FROM payment WHERE id = 0")) == note


def test_in_a_deferrable_transaction_even_a_free_lock_can_wait_for_a_snapshot(
    engine: Engine, meanwhile: Meanwhile, observer: Observer
) -> None:
    # The documented caveat. Under READ COMMITTED nothing waits for a writer here.
    locker = PgAdvisoryLock(["users", 1])
    serializable = {"isolation_level": "SERIALIZABLE"}
    deferrable = {**serializable, "postgresql_readonly": True, "postgresql_deferrable": True}
    # Of the connections: the first releases of SQLAlchemy 2.0 do not take the last two of an engine.
    with (
        engine.connect().execution_options(**serializable) as one,
        engine.connect().execution_options(**deferrable) as other,
        Session(one) as writer,
        Session(other) as reader,
    ):
        writer.execute(text("UPDATE payment SET note = 'paid' WHERE id = 0"))
        trying = meanwhile(locker.lock_immediate, reader)
        observer.until(
            lambda: observer.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SafeSnapshot'") == 1
        )
        writer.commit()
        assert trying.result(20)


def test_one_instance_serves_many_threads(engine: Engine, meanwhile: Meanwhile) -> None:
    locker = PgAdvisoryLock(["users", 1])

    def work(number: int) -> None:
        with Session(engine) as session, session.begin(), locker.held(session, timeout_in_ms=60_000):
            count = session.scalar(text("SELECT count(*) FROM payment"))
            session.execute(text("INSERT INTO payment VALUES (:id, 'guarded')"), {"id": count})

    # The primary key refuses two that counted the same.
    for done in [meanwhile(work, number) for number in range(20)]:
        done.result(60)
