"""The strategy advisory against a real server: one advisory lock, held by one transaction while the work runs."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LeaseLostError,
    LockNotAcquiredError,
    LockWaitEndedError,
    LossReason,
    acquire_locks,
    aio,
    run_with_locks,
)
from dislock.drivers import aio as tasks
from dislock.drivers import threads
from dislock.holding import Holding
from pg_advisory_lock import PgAdvisoryLock
from tests.integration.library.conftest import MakeContext
from tests.support.pgbouncer import PgBouncer
from tests.support.wait import until

Database = psycopg.Connection[Any]
HELD = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def web_application(url: str, parts: list[str], *, shared: bool = False) -> Callable[[], bool]:
    """Whether a request of a web application gets the lock at once."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    lock = PgAdvisoryLock(parts, raise_on_failure=False, shared=shared)

    def request() -> bool:
        with engine.begin() as connection:
            return lock.lock_immediate(connection)

    return request


@pytest.mark.parametrize("shared", [False, True])
def test_a_job_and_the_requests_of_an_application_exclude_each_other(
    make: MakeContext, database_url: str, shared: bool
) -> None:
    request = web_application(database_url, ["billing", "42"], shared=shared)
    with acquire_locks(make(lock_key='["billing","42"]'), ["advisory"]):
        assert not request()
    assert request()


def test_a_plain_key_is_one_part(make: MakeContext, database_url: str) -> None:
    with acquire_locks(make(lock_key="billing"), ["advisory"]):
        assert not web_application(database_url, ["billing"])()


def test_the_second_of_two_is_refused_and_learns_who_holds_it(make: MakeContext) -> None:
    with (
        acquire_locks(make(), ["advisory"]),
        pytest.raises(LockNotAcquiredError, match=r"held by dislock job \(process"),
    ):
        acquire_locks(make(), ["advisory"]).__enter__()


def test_the_open_transaction_keeps_no_snapshot(make: MakeContext, db: Database) -> None:
    with acquire_locks(make(), ["advisory"]):
        (pid,) = db.execute(HELD).fetchone()  # type: ignore[misc] # there is a row
        row = db.execute("SELECT state, backend_xmin FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
    assert row == ("idle in transaction", None)


def test_a_role_that_limits_idle_transactions_does_not_end_it(
    make: MakeContext, db: Database, database_url: str
) -> None:
    name = db.info.dbname
    db.execute(
        psycopg.sql.SQL("ALTER DATABASE {} SET idle_in_transaction_session_timeout = 50").format(
            psycopg.sql.Identifier(name)
        )
    )
    with acquire_locks(make(), ["advisory"]) as session:
        db.execute("SELECT pg_sleep(0.2)")
        session.check()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_connection_that_the_server_ends_is_a_loss_at_once(
    make: MakeContext, db: Database, asynchronous: bool
) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"

    async def guarded() -> None:
        async with aio.acquire_locks(make(), ["advisory"]) as session:
            assert session.lease_lost is not None
            db.execute(end)
            await asyncio.wait_for(session.lease_lost.wait(), 5)

    with pytest.raises(LeaseLostError) as caught:
        if asynchronous:
            asyncio.run(guarded())
        else:
            with acquire_locks(make(), ["advisory"]) as session:
                assert session.lease_lost is not None
                db.execute(end)
                assert session.lease_lost.wait(5), "long before the next statement"
    assert caught.value.reason is LossReason.UNCONFIRMED


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_waiter_is_served_when_the_lock_is_free(make: MakeContext, db: Database, asynchronous: bool) -> None:
    served: list[str] = []

    async def guarded() -> None:
        async with aio.acquire_locks(make(wait_seconds=20), ["advisory"]):
            served.append("async")

    def wait() -> None:
        if asynchronous:
            asyncio.run(guarded())
        else:
            with acquire_locks(make(wait_seconds=20), ["advisory"]):
                served.append("sync")

    waiter = threading.Thread(target=wait)
    with acquire_locks(make(), ["advisory"]):
        waiter.start()
        until(lambda: db.execute(WAITING).fetchone())
        assert not served
    waiter.join()
    assert len(served) == 1


def test_a_wait_in_vain_ends_with_an_error_of_its_own(make: MakeContext) -> None:
    with acquire_locks(make(), ["advisory"]), pytest.raises(LockWaitEndedError, match="gave up after"):
        acquire_locks(make(wait_seconds=0.2), ["advisory"]).__enter__()


def test_a_pooler_that_allows_no_transaction_is_named(make: MakeContext, database_url: str) -> None:
    with PgBouncer(database_url, "statement") as pooler:
        context = make(url=pooler.url(database_url))
        with pytest.raises(ConfigurationError, match="needs the pool_mode transaction or session"):
            acquire_locks(context, ["advisory"]).__enter__()


def test_there_is_no_fencing_token(make: MakeContext, capfd: pytest.CaptureFixture[str]) -> None:
    with acquire_locks(make(), ["advisory"]) as session, pytest.raises(DislockError, match="no fencing token"):
        session.fencing_token  # noqa: B018 - that it is refused is what is tested
    assert run_with_locks(["env"], make(), ["advisory"]) == 0
    assert "DISLOCK_FENCING_TOKEN" not in capfd.readouterr().out


def test_nothing_is_left_behind(make: MakeContext, db: Database, connections: Callable[[], int]) -> None:
    with acquire_locks(make(), ["advisory"]):
        assert connections() == 1
    until(lambda: connections() == 0)
    assert db.execute(HELD).fetchone() is None
    assert db.execute("SELECT count(*) FROM key_value").fetchone() == (0,)


def test_a_watch_that_was_asked_to_leave_before_it_began_ends(make: MakeContext) -> None:
    holding = Holding(make(), ["advisory"])
    holding.begin()
    driver = holding._driver
    assert driver.run(holding.acquisition.acquire())
    for _ in range(20):
        leave = driver.leave()
        driver.request(leave)
        driver.run(holding.acquisition.keep(), leave)
    assert holding.release() is None


def test_a_process_with_many_open_files_keeps_its_lock(make: MakeContext) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.dup(0) for _ in range(1100)]
    try:
        with acquire_locks(make(), ["advisory"]) as session:
            assert session.lease_lost is not None
            assert not session.lease_lost.wait(0.5)
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_thread_that_watches_nothing_is_begun(
    make: MakeContext, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "dislock-renewal":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(DislockError, match="no thread"):
        acquire_locks(make(), ["advisory"]).__enter__()
    until(lambda: db.execute(HELD).fetchone() is None)


def test_a_wait_whose_connection_breaks_at_its_end_proves_nothing(make: MakeContext, db: Database) -> None:
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            acquire_locks(make(wait_seconds=1.5), ["advisory"]).__enter__()
        except DislockError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    with acquire_locks(make(), ["advisory"]):
        waiter.start()
        until(lambda: db.execute(WAITING).fetchone())
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        waiter.join()
    assert [type(error) for error in errors] == [DatabaseUnavailableError]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_whoever_leaves_a_wait_does_not_wait_for_its_answer(
    make: MakeContext, db: Database, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    for driver in (threads, tasks):
        monkeypatch.setattr(driver, "LINGER", 3600.0)

    async def queue() -> None:
        waiter = asyncio.create_task(aio.acquire_locks(make(wait_seconds=3600), ["advisory"]).__aenter__())
        await asyncio.to_thread(until, lambda: db.execute(WAITING).fetchone())
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    with acquire_locks(make(), ["advisory"]):
        if asynchronous:
            asyncio.run(queue())
        else:
            holding = Holding(make(wait_seconds=3600), ["advisory"])
            held: list[bool] = []
            waiter = threading.Thread(target=lambda: held.append(holding.acquire()))
            waiter.start()
            until(lambda: db.execute(WAITING).fetchone())
            holding.request_leave()
            waiter.join()
            assert held == [False]
        # An older psycopg cannot cancel: the server sees to its queue when the lock is free.
        if hasattr(psycopg.pq.PGconn, "cancel_conn"):
            until(lambda: db.execute(WAITING).fetchone() is None)
