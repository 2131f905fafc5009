"""A wait that its own program gives up: no lock is left, no transaction pretends to be whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from pg_advisory_lock import PgAdvisoryLockTimeout, PgAdvisoryLockWarning, aio
from tests.integration.advisory.actors import ASYNC_DRIVERS, SYNC_DRIVERS, Actor, sqlalchemy_url
from tests.integration.advisory.observer import Observer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]


# SQLAlchemy and the drivers close the connection under the cancelled task and may warn of it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_a_cancelled_task_leaves_no_lock_and_no_waiter(
    enter: Enter, conninfo: str, driver: str, observer: Observer
) -> None:
    holder, third = enter(), enter()
    holder.lock()
    locker = aio.PgAdvisoryLock(["users", 1])

    async def give_up() -> None:
        engine = create_async_engine(sqlalchemy_url(conninfo, driver))
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO payment VALUES (1, 'lost')"))
            waiting = asyncio.create_task(locker.lock(session, timeout_in_ms=60_000))
            while not await asyncio.to_thread(observer.waiters):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await session.rollback()
            # The session goes on with another connection and can lock there.
            await asyncio.to_thread(holder.commit)
            assert await locker.lock(session, timeout_in_ms=20_000)
            await session.commit()
        await engine.dispose()

    asyncio.run(give_up())
    observer.until(third.can_lock)
    assert third.sql("SELECT count(*) FROM payment") == 1


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and the tests may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_program_leaves_no_lock(enter: Enter, observer: Observer, meanwhile: Meanwhile) -> None:
    holder, one, third = enter(), enter(), enter()
    holder.lock()

    def interrupt() -> None:
        observer.until_waiting()
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = meanwhile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.lock(timeout_in_ms=60_000, raise_on_failure=False)
    interrupting.result(20)
    one.rollback()
    holder.rollback()
    observer.until(third.can_lock)


class SoftTimeLimit(Exception):
    """What a signal handler raises in programs that watch over their tasks; unlike KeyboardInterrupt, an Exception."""


@pytest.fixture
def _limited() -> Iterator[None]:
    def handle(_number: int, _frame: object) -> None:
        raise SoftTimeLimit

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


# The connection is closed while the driver is in the middle of something, and one or the other may warn of it.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("way", [f"{driver}-session" for driver in SYNC_DRIVERS])
def test_an_exception_out_of_a_signal_handler_leaves_nothing_half_said(
    enter: Enter, way: str, observer: Observer, meanwhile: Meanwhile
) -> None:
    holder, one, third = enter(), enter(way), enter()
    holder.lock()
    one.sql("INSERT INTO payment VALUES (1, 'lost')")

    def limit() -> None:
        observer.until_waiting()
        os.kill(os.getpid(), signal.SIGUSR1)
        if one.driver == "psycopg2":
            # It waits in C, and no handler runs before its answer has come.
            holder.rollback()

    limiting = meanwhile(limit)
    with pytest.raises(SoftTimeLimit):
        one.lock(timeout_in_ms=10_000, raise_on_failure=False)
    limiting.result(20)
    if one.driver == "psycopg2":
        # It has the whole answer, and the savepoint the rest.
        assert one.sql("SELECT count(*) FROM payment") == 2
    else:
        with pytest.raises(PendingRollbackError):
            one.sql("SELECT 1")
    one.rollback()
    assert [one.sql(f"SELECT {number}") for number in range(3)] == [0, 1, 2]
    holder.rollback()
    observer.until(third.can_lock)
    assert one.lock("another")
    assert not third.can_lock("another")
    assert third.sql("SELECT count(*) FROM payment") == 1


@pytest.mark.parametrize("way", ["psycopg-session", "pg8000-session", "asyncpg-session"])
def test_an_exception_of_an_event_before_the_statement_leaves_the_transaction_usable(enter: Enter, way: str) -> None:
    one, other = enter(way), enter()
    one.sql("INSERT INTO payment VALUES (1, 'kept')")

    def forbid(*_arguments: object) -> None:
        raise SoftTimeLimit

    event.listen(one.sync_engine, "before_cursor_execute", forbid)
    with pytest.raises(SoftTimeLimit):
        one.lock()
    event.remove(one.sync_engine, "before_cursor_execute", forbid)
    if one.driver == "pg8000":
        # Nobody can tell here that nothing was sent.
        one.rollback()
    else:
        assert one.sql("SELECT count(*) FROM payment") == 2
    assert one.lock()
    assert not other.can_lock()


def test_a_time_limit_of_asyncpg_s_own_comes_out_as_it_is(enter: Enter) -> None:
    holder, one = enter(), enter("asyncpg-session", connect_args={"command_timeout": 0.3})
    holder.lock()
    one.sql("INSERT INTO payment VALUES (1, 'lost')")
    # One and the same class only since Python 3.11. SQLAlchemy closes the connection after it.
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        one.lock(timeout_in_ms=10_000)
    one.rollback()
    holder.rollback()
    assert one.sql("SELECT count(*) FROM payment") == 1
    assert one.lock()
    assert not holder.can_lock()


def test_an_exception_while_it_is_asked_who_is_in_the_way_is_not_hidden(enter: Enter) -> None:
    holder, one = enter(), enter()
    holder.lock()

    @event.listens_for(one.sync_engine, "before_cursor_execute")
    def limit(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if "pg_lock_status" in statement:
            raise SoftTimeLimit

    with pytest.raises(SoftTimeLimit):
        one.lock_immediate()
    assert one.sql("SELECT 1") == 1


@pytest.mark.parametrize("way", ["psycopg-session", "pg8000-session"])
def test_an_error_that_an_event_puts_in_the_database_s_place_leaves_the_connection(enter: Enter, way: str) -> None:
    one = enter(way)
    one.sql("SET LOCAL statement_timeout = '50ms'")
    holder = enter()
    holder.lock()

    @event.listens_for(one.sync_engine, "handle_error", retval=True)
    def replace(_context: object) -> Exception:
        return SoftTimeLimit()

    with pytest.raises(SoftTimeLimit):
        one.lock(timeout_in_ms=10_000)
    assert one.sql("SELECT 1") == 1


def test_tasks_take_turns(conninfo: str) -> None:
    async def turns() -> None:
        engine = create_async_engine(sqlalchemy_url(conninfo, "asyncpg"), pool_size=10)
        locker = aio.PgAdvisoryLock(["users", 1])

        async def work() -> None:
            async with AsyncSession(engine) as session, session.begin(), locker.held(session, 60_000):
                count = await session.scalar(text("SELECT count(*) FROM payment"))
                await session.execute(text("INSERT INTO payment VALUES (:id, 'guarded')"), {"id": count})

        await asyncio.gather(*(work() for _ in range(10)))
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT count(*) FROM payment")) == 11
        await engine.dispose()

    asyncio.run(turns())


def test_an_async_scoped_session_and_an_exception_that_knows_the_holder(conninfo: str) -> None:
    async def scoped() -> None:
        engine = create_async_engine(sqlalchemy_url(conninfo, "asyncpg"))
        sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        locker = aio.PgAdvisoryLock(["users", 1])
        async with engine.begin() as connection:
            assert await locker.lock_immediate(connection)
            with pytest.raises(PgAdvisoryLockTimeout) as caught:
                await locker.lock(sessions, timeout_in_ms=20)
            assert list(caught.value.holders) == await locker.holders(sessions)
        async with locker.held(sessions):
            pass
        async with sessions().begin_nested():
            with pytest.warns(PgAdvisoryLockWarning) as warned:
                await locker.lock(sessions)
        assert [warning.filename for warning in warned] == [__file__]
        await sessions.remove()
        await engine.dispose()

    asyncio.run(scoped())
