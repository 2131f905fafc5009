"""The public interface as a typed program uses it. It is never run: mypy, in its strictest mode, is the test.

What must be refused is marked as ignored, and in that mode an ignored line without an error is an error.
"""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone

from typing_extensions import assert_type

from dislock import (
    LEASE_LOST_EXIT_CODE,
    LeaseLock,
    LeaseLossPolicy,
    LeaseLostError,
    LockContext,
    LockNotAcquiredError,
    LockSession,
    Loss,
    LossReason,
    ScheduleLock,
    acquire_locks,
    aio,
    build_locks,
    run_with_locks,
    with_locks,
)
from dislock.testing import Held, LockServer, in_memory

context = LockContext(
    url="postgresql://h/d",
    table_parts=["key_value"],
    lock_key="k",
    owner="h:1",
    next_run_time=datetime.now(timezone.utc),
    run_ttl_seconds=60,
    lease_interval_seconds=10.0,
    schedule="0 3 * * *",
    jitter_max_seconds=1.5,
    lease_loss_policy=LeaseLossPolicy.CONTINUE,
)
key: str = context.schedule_key + context.lease_key
code: int = LEASE_LOST_EXIT_CODE


def sync() -> None:
    with ScheduleLock(context), LeaseLock(context) as one:
        assert_type(one, LockSession)
    with acquire_locks(context, strategies=("schedule", "lease")) as session:
        assert_type(session.lease_lost, threading.Event | None)
        assert_type(session.fencing_token, int)
        assert_type(session.loss, Loss | None)
        assert_type(session.loss_reason, LossReason | None)
    for lock in build_locks(context, ["lease"]):
        with lock:
            pass
    assert_type(run_with_locks(["true"], context=context, strategies=("schedule",)), int)
    try:
        pass
    except LockNotAcquiredError as error:
        assert_type(error.holder, str | None)
        assert_type(error.expires_at, datetime | None)
    except LeaseLostError as error:
        assert_type(error.reason, LossReason)


@with_locks(context, ["lease"])
def guarded(number: int, *, word: str = "") -> str:
    return word * number


result: str = guarded(3, word="a")
guarded("3")  # type: ignore[arg-type] # must be refused


async def asynchronous() -> None:
    async with aio.acquire_locks(context, ("lease",)) as session:
        assert_type(session.lease_lost, asyncio.Event | None)
    async with aio.LeaseLock(context) as one, aio.ScheduleLock(context):
        assert_type(one, aio.LockSession)
    for lock in aio.build_locks(context, ("lease",)):
        async with lock:
            pass
    assert_type(await coroutine(3), int)
    await coroutine("3")  # type: ignore[arg-type] # must be refused
    with aio.LeaseLock(context):  # type: ignore[attr-defined] # must be refused
        pass


@aio.with_locks(context, ["lease"])
async def coroutine(number: int) -> int:
    return number


LockContext(url="u", table_parts=["t"], owner="o")  # type: ignore[call-arg] # must be refused
LockContext(url="u", lock_key="k", lease_loss_policy="continue", slot_consumed_by="success")
LockContext(url="u", lock_key="k", lease_loss_policy="go on")  # type: ignore[arg-type] # must be refused
acquire_locks(context, ["advisory"])
acquire_locks(context, ["leas"])  # type: ignore[list-item] # must be refused
LockContext("u", ["t"], "k", "o")  # type: ignore[call-arg] # must be refused
acquire_locks(context)  # type: ignore[call-arg] # must be refused
context.owner = "other"  # type: ignore[misc] # must be refused


def test_of_a_program(lock_server: LockServer) -> None:
    lock_server.advance(1.5)
    lock_server.take_away("k", by="h:2", seconds=5)
    assert_type(lock_server.holder("k"), str | None)


with in_memory(now=datetime.now(timezone.utc)) as server:
    assert_type(server, LockServer)
    assert_type(server.now, datetime)
    assert_type(server.held(), list[Held])
    assert_type(server.held("k")[0].expires, datetime | None)
    server.advance("1")  # type: ignore[arg-type] # must be refused
in_memory(datetime.now(timezone.utc))  # type: ignore[call-arg] # must be refused
