"""What a lock costs the server, counted by the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from dislock import LockContext, LockNotAcquiredError, acquire_locks, aio
from tests.conftest import KEY_VALUE
from tests.support.postgres import Postgres
from tests.support.statements import SETTINGS, watch
from tests.support.wait import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def counting() -> Iterator[Postgres]:
    with Postgres(SETTINGS) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
        yield server


@pytest.fixture
def context(counting: Postgres, request: pytest.FixtureRequest) -> LockContext:
    return LockContext(
        url=counting.url(),
        table_parts=["key_value"],
        lock_key=request.node.name,
        owner="host:1",
        schedule="0 0 1 1 *",
        run_ttl_seconds=60.0,
        lease_interval_seconds=20.0,
    )


def use(context: LockContext, strategies: list[str], *, asynchronous: bool) -> None:
    async def guarded() -> None:
        async with aio.acquire_locks(context, strategies):
            pass

    if asynchronous:
        asyncio.run(guarded())
    else:
        with acquire_locks(context, strategies):
            pass


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("strategies", "connections", "statements"),
    [(["schedule"], 1, 2), (["lease"], 1, 2), (["schedule", "lease"], 1, 4)],
)
def test_a_run_costs_what_the_documentation_says(
    counting: Postgres, context: Any, strategies: list[str], connections: int, statements: int, asynchronous: bool
) -> None:
    with watch(counting, "postgres") as traffic:
        use(context, strategies, asynchronous=asynchronous)
    assert traffic.connections == connections
    assert len(traffic.statements) == statements, traffic.statements
    assert not [sql for sql in traffic.statements if sql.upper().startswith(("BEGIN", "COMMIT", "SET", "DEALLOCATE"))]


def test_each_renewal_is_one_statement_on_the_same_connection(counting: Postgres, context: Any) -> None:
    often = replace(context, lease_interval_seconds=0.05)
    with watch(counting, "postgres") as traffic, acquire_locks(often, ["lease"]) as session:
        lease = session._acquisition.lease
        assert lease is not None
        first = lease.stop_time
        until(lambda: lease.stop_time > first + 0.2)
    renewals = traffic.statements[1:-1]
    assert len(renewals) >= 3
    assert len(set(traffic.backends)) == 1
    assert all("UPDATE" in sql for sql in renewals)


def test_a_refusal_asks_once_who_holds_the_lock(counting: Postgres, context: Any) -> None:
    refused = acquire_locks(context, ["lease"])
    with (
        acquire_locks(context, ["lease"]),
        watch(counting, "postgres") as traffic,
        pytest.raises(LockNotAcquiredError),
    ):
        refused.__enter__()
    assert (traffic.connections, len(traffic.statements)) == (1, 2)
