"""A transaction prepared for a two-phase commit has left its connection: nothing is sent that would begin another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLockError, PgAdvisoryLockLost
from tests.integration.advisory.actors import SYNC_DRIVERS, Actor
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration
Enter = Callable[..., Actor]
PREPARED = "SELECT count(*) FROM pg_prepared_xacts"


@pytest.fixture(scope="module")
def twophase_server() -> Iterator[str]:
    with Postgres({"max_prepared_transactions": 10}) as server:
        yield server.url()


@pytest.fixture
def one(enter: Enter, twophase_server: str, driver: str) -> Actor:
    one = enter(f"{driver}-session", conninfo=twophase_server)
    one.handle = (AsyncSession if one.is_async else Session)(one.engine, twophase=True)
    return one


@pytest.fixture
def other(enter: Enter, twophase_server: str) -> Actor:
    return enter(conninfo=twophase_server)


def prepare(actor: Actor) -> None:
    actor.do(actor.handle.run_sync(lambda session: session.prepare()) if actor.is_async else actor.handle.prepare())


@pytest.mark.parametrize("driver", [*SYNC_DRIVERS, "asyncpg"])
def test_a_block_that_prepared_is_told_and_the_transaction_can_be_rolled_back(one: Actor, other: Actor) -> None:
    with one.counting() as statements, pytest.raises(PgAdvisoryLockLost, match=r"call prepare\(\) after"), one.held():
        prepare(one)
    assert not [statement for statement in statements if " AS marks" in statement]
    assert other.sql(PREPARED) == 1
    one.rollback()
    assert other.sql(PREPARED) == 0
    other.rollback()
    assert other.can_lock()


def test_a_block_that_prepared_can_be_committed_all_the_same(one: Actor, other: Actor) -> None:
    with pytest.raises(PgAdvisoryLockLost), one.held():
        prepare(one)
    assert not other.can_lock()
    one.commit()
    assert other.sql(PREPARED) == 0
    other.rollback()
    assert other.can_lock()


def test_prepared_after_the_block_it_is_guarded_to_the_end(one: Actor, other: Actor) -> None:
    with one.held():
        pass
    prepare(one)
    assert not other.can_lock()
    with pytest.raises(InvalidRequestError):
        one.lock()
    one.commit()
    assert other.can_lock()
    assert other.sql(PREPARED) == 0


def test_a_prepared_transaction_takes_no_more_locks(
    enter: Enter, twophase_server: str, driver: str, other: Actor
) -> None:
    one = enter(f"{driver}-connection", conninfo=twophase_server)

    def on_connection(act: Callable[[Connection], Any]) -> Any:
        return one.do(one.handle.run_sync(act)) if one.is_async else act(one.handle)

    transaction = on_connection(lambda connection: connection.begin_twophase())
    assert one.lock("before")
    on_connection(lambda _connection: transaction.prepare())
    with one.counting() as statements:
        for take in (one.lock, one.lock_immediate, one.held().__enter__, one.holders):
            with pytest.raises(PgAdvisoryLockError, match=r"lock before prepare\(\)") as caught:
                take()
            assert type(caught.value) is PgAdvisoryLockError
    assert statements == []
    assert not other.can_lock("before")
    on_connection(lambda _connection: transaction.commit())
    assert other.sql(PREPARED) == 0
    # The way out that the message gives.
    assert one.lock()
    assert not other.can_lock()
