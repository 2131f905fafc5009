"""Through a PgBouncer that gives each transaction whichever server connection is free."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql import asyncpg as asyncpg_dialect

from pg_advisory_lock import PgAdvisoryLockLost, PgAdvisoryLockTimeout
from tests.integration.advisory.actors import SYNC_DRIVERS, Actor
from tests.integration.advisory.observer import Observer
from tests.support.pgbouncer import PgBouncer

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
Meanwhile = Callable[..., "Future[Any]"]

#: What each driver needs for such a pooler anyway, by its own documentation: no prepared statements that outlive a
#: transaction.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "psycopg_async": {"prepare_threshold": None},
    "psycopg2": {},
    "pg8000": {},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"statement_{uuid.uuid4().hex}",
    },
}


@pytest.fixture(scope="session")
def pooler(server_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(server_url, "transaction") as pooler:
        yield pooler


@pytest.fixture
def pooled(enter: Enter, pooler: PgBouncer, conninfo: str) -> Enter:
    def pooled(driver: str) -> Actor:
        if driver == "asyncpg" and "prepared_statement_name_func" not in inspect.getsource(asyncpg_dialect):
            pytest.skip("the first releases of SQLAlchemy 2.0 cannot use asyncpg through such a pooler")
        return enter(f"{driver}-session", conninfo=pooler.url(conninfo), connect_args=ARGUMENTS[driver])

    return pooled


@pytest.mark.parametrize("driver", [*SYNC_DRIVERS, "asyncpg"])
def test_everything_works_unchanged(
    pooled: Enter, enter: Enter, driver: str, meanwhile: Meanwhile, observer: Observer
) -> None:
    one, other, direct = pooled(driver), pooled(driver), enter()
    assert one.lock()
    assert not other.can_lock()
    assert not direct.can_lock()
    with pytest.raises(PgAdvisoryLockTimeout) as caught:
        other.lock(timeout_in_ms=30)
    assert [holder.pid for holder in caught.value.holders] == [one.pid]
    other.sql("INSERT INTO payment VALUES (1, 'after the timeout')")
    other.commit()
    waiting = meanwhile(other.lock, timeout_in_ms=60_000)
    observer.until_waiting()
    one.commit()
    assert waiting.result(20)
    assert not direct.can_lock()
    other.commit()
    with one.held(shared=True), other.held(shared=True):
        assert len(direct.holders()) == 2
    one.rollback()
    other.rollback()
    with pytest.raises(PgAdvisoryLockLost), one.held():
        one.commit()
    assert direct.can_lock()


def test_no_setting_stays_behind_on_a_shared_server_connection(pooled: Enter, driver: str) -> None:
    one, other, third = pooled(driver), pooled(driver), pooled(driver)
    seen = set()
    for _ in range(3):
        one.lock()
        seen.add(one.pid)
        assert other.lock(timeout_in_ms=10, raise_on_failure=False) is False
        one.commit()
        # Takes the server connection that was given back last; the one has to go on with another.
        assert third.sql("SHOW lock_timeout") == "0"
        other.commit()
        assert one.sql("SHOW lock_timeout") == "0"
        seen.add(one.pid)
        one.commit()
        third.commit()
    assert len(seen) > 1, "the pooler never changed the connection: nothing was tried"
