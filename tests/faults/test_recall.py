"""A statement whose sender leaves is called back: it must not take a lock for nobody later."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest

from dislock import LockContext, aio
from dislock.holding import Holding
from tests.faults.conftest import Table
from tests.faults.wrapper import PATIENCE
from tests.support.wait import until

pytestmark = pytest.mark.integration


def context(url: str) -> LockContext:
    return LockContext(
        url=url,
        table_parts=["key_value"],
        lock_key="job",
        owner="host:1",
        schedule="0 0 1 1 *",
        run_ttl_seconds=30.0,
        lease_interval_seconds=5.0,
    )


def test_by_the_threads(database_url: str, table: Table) -> None:
    holding = Holding(context(database_url), ["schedule"])
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")

        def leave_when_it_waits() -> None:
            until(lambda: table.waiting("Lock"), PATIENCE)
            holding.request_leave()

        leave = threading.Thread(target=leave_when_it_waits)
        leave.start()
        assert holding.acquire() is False
        leave.join()
    until(lambda: not table.backends(), PATIENCE, "the end of the connection")
    assert table.live() == {}


def test_by_asyncio(database_url: str, table: Table) -> None:
    async def main() -> None:
        entering = asyncio.create_task(aio.acquire_locks(context(database_url), ["schedule"]).__aenter__())
        while not await asyncio.to_thread(table.waiting, "Lock"):
            assert not entering.done()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
        asyncio.run(main())
    until(lambda: not table.backends(), PATIENCE, "the end of the connection")
    assert table.live() == {}
