"""Waiting for a lease, and ticks that only a success closes: for threads and for asyncio alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from dislock import (
    LeaseLock,
    LockNotAcquiredError,
    LockWaitEndedError,
    NotSealedError,
    acquire_locks,
    aio,
    run_with_locks,
    with_locks,
)
from tests.integration.library.conftest import MakeContext
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
BOTH = ("schedule", "lease")
both_kinds = pytest.mark.parametrize("asynchronous", [False, True])
HELD = "INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'other:9', now() + interval '1 hour')"
#: Nobody can seal.
REFUSE = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no room'; END$$",
    "CREATE TRIGGER refuse BEFORE INSERT ON key_value FOR EACH ROW"
    " WHEN (NEW.key LIKE '%schedule%') EXECUTE FUNCTION refuse()",
)


def guard(context: Any, strategies: Any, work: Callable[[], Any], *, asynchronous: bool) -> None:
    """Work in a guarded block."""

    async def block() -> None:
        async with aio.acquire_locks(context, strategies):
            await asyncio.to_thread(work)

    if asynchronous:
        asyncio.run(block())
        return
    with acquire_locks(context, strategies):
        work()


@both_kinds
def test_a_waiter_enters_when_the_holder_leaves(make: MakeContext, db: Connection, asynchronous: bool) -> None:
    order: list[str] = []
    entered = threading.Event()

    def wait() -> None:
        guard(
            make(owner="host:2", wait_seconds=60), ["lease"], lambda: order.append("second"), asynchronous=asynchronous
        )

    def first() -> None:
        waiter.start()
        looks = (
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%LEFT JOIN%slot.key%' AND datname = current_database()"
        )
        until(lambda: db.execute(looks + " AND state = 'idle'").fetchone())
        order.append("first")
        entered.set()

    waiter = threading.Thread(target=wait)
    guard(make(), ["lease"], first, asynchronous=asynchronous)
    waiter.join(60)
    assert order == ["first", "second"]


@both_kinds
def test_a_wait_in_vain_is_an_error_of_its_own(make: MakeContext, db: Connection, asynchronous: bool) -> None:
    db.execute(HELD)
    with pytest.raises(LockWaitEndedError) as caught:
        guard(make(wait_seconds=0.2), ["lease"], lambda: pytest.fail("entered"), asynchronous=asynchronous)
    assert caught.value.holder == "other:9"
    assert isinstance(caught.value, LockNotAcquiredError)


def test_a_cancelled_wait_ends_at_once_and_leaves_nothing(
    make: MakeContext, db: Connection, connections: Callable[[], int]
) -> None:
    db.execute(HELD)

    async def main() -> None:
        entering = asyncio.create_task(aio.LeaseLock(make(wait_seconds=600)).__aenter__())
        while not await asyncio.to_thread(connections):
            assert not entering.done()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(main())
    until(lambda: connections() == 0)


@both_kinds
def test_a_block_that_ends_without_an_error_closes_the_tick(
    make: MakeContext, live: Callable[[], set[str]], asynchronous: bool
) -> None:
    context = make(slot_consumed_by="success")
    with pytest.raises(ZeroDivisionError):
        guard(context, BOTH, lambda: 1 / 0, asynchronous=asynchronous)
    assert live() == set()
    guard(context, BOTH, lambda: None, asynchronous=asynchronous)
    assert live() == {"schedule"}
    with pytest.raises(LockNotAcquiredError, match="was completed by host:1"):
        guard(context, BOTH, lambda: pytest.fail("entered"), asynchronous=asynchronous)


@both_kinds
def test_a_decorated_call_that_returns_closes_the_tick(
    make: MakeContext, live: Callable[[], set[str]], asynchronous: bool
) -> None:
    context = make(slot_consumed_by="success")
    if asynchronous:

        @aio.with_locks(context, BOTH)
        async def work() -> int:
            return 7

        assert asyncio.run(work()) == 7
    else:

        @with_locks(context, BOTH)
        def same() -> int:
            return 7

        assert same() == 7
    assert live() == {"schedule"}


@both_kinds
def test_a_success_that_cannot_be_sealed_is_an_error(make: MakeContext, db: Connection, asynchronous: bool) -> None:
    for statement in REFUSE:
        db.execute(statement.encode())
    context = make(slot_consumed_by="success", run_ttl_seconds=2.0, lease_interval_seconds=0.5)
    with pytest.raises(NotSealedError):
        guard(context, BOTH, lambda: None, asynchronous=asynchronous)
    # An error of the block's own is never replaced, and nothing is to be sealed then.
    with pytest.raises(ZeroDivisionError):
        guard(context, BOTH, lambda: 1 / 0, asynchronous=asynchronous)


def test_a_command_closes_the_tick_with_0_alone(
    make: MakeContext, db: Connection, live: Callable[[], set[str]]
) -> None:
    context = make(slot_consumed_by="success")
    assert run_with_locks(["sh", "-c", "exit 7"], context, BOTH) == 7
    assert live() == set()
    assert run_with_locks(["true"], context, BOTH) == 0
    assert live() == {"schedule"}
    with pytest.raises(LockNotAcquiredError):
        run_with_locks(["true"], context, BOTH)
    db.execute("DELETE FROM key_value")
    for statement in REFUSE:
        db.execute(statement.encode())
    short = make(slot_consumed_by="success", run_ttl_seconds=2.0, lease_interval_seconds=0.5, kill_grace_seconds=0.1)
    assert run_with_locks(["true"], short, BOTH) == 75


def test_a_waiter_and_the_lock_of_a_slot_alone_do_not_get_in_each_others_way(make: MakeContext) -> None:
    with LeaseLock(make()), acquire_locks(make(wait_seconds=60), ["schedule"]) as session:
        assert session.slot
