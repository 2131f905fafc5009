"""Slots, as a server, a wait and an early start make them."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from dislock import (
    LockNotAcquiredError,
    ScheduleLock,
    SlotOverError,
    aio,
    with_locks,
)
from dislock.holding import Holding
from dislock.protocol.schedule import Slot
from tests.integration.library.conftest import MakeContext
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]


def expiry(db: Connection, kind: str) -> datetime:
    row = db.execute("SELECT expire_at FROM key_value WHERE key LIKE %s", (f"%:{kind}:%",)).fetchone()
    assert row is not None
    end: datetime = row[0]
    return end


def test_a_slot_taken_early_and_given_back_ends_at_its_tick_and_not_now(make: MakeContext, db: Connection) -> None:
    """Else the tick before it, which was started and is over, could be started again."""
    row = db.execute("SELECT clock_timestamp() + interval '1 hour'").fetchone()
    assert row is not None
    tick = row[0]
    slot = Slot(tick, tick + timedelta(hours=1), tick + timedelta(hours=2))
    holding = Holding(make(), ["schedule"])
    begin = holding.request.begin

    def early(started: float | None = None) -> Any:
        protocol = begin(started)
        assert protocol._plan.slot
        protocol._plan = protocol._plan._replace(slot=protocol._plan.slot._replace(slot=slot))
        return protocol

    holding.request.begin = early  # type: ignore[method-assign] # an early start without waiting for a tick
    assert holding.acquire()
    assert expiry(db, "schedule") == slot.expires
    holding.release(started=False)
    assert expiry(db, "schedule") == tick


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_slot_that_is_over_is_told_as_that(make: MakeContext, db: Connection, taken_before: bool) -> None:
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    context = make(next_run_time=past)
    if taken_before:
        db.execute("INSERT INTO key_value VALUES (%s, 'host:9', %s)", (context.schedule_key, past))
    before = db.execute("SELECT * FROM key_value").fetchall()
    with pytest.raises(SlotOverError) as caught, ScheduleLock(context):
        pytest.fail("a lock that holds nothing")
    assert caught.value.key == context.schedule_key
    assert db.execute("SELECT * FROM key_value").fetchall() == before


def test_a_slot_that_ends_while_its_row_is_locked_gives_way_to_the_current_one(
    make: MakeContext, db: Connection, database_url: str
) -> None:
    """The claim waits for somebody's row lock until its slot is over; nobody holds anything, so the start goes on."""
    context = make(schedule="* * * * * *", slot_tolerance_seconds=0.0)
    db.execute("INSERT INTO key_value VALUES (%s, 'host:9', now() - interval '1 hour')", (context.schedule_key,))
    slots: list[Slot | None] = []

    def enter() -> None:
        with ScheduleLock(context) as session:
            slots.append(session.slot)

    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT 1 FROM key_value FOR UPDATE")
        thread = threading.Thread(target=enter)
        thread.start()
        until(
            lambda: db.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'dislock%'"
            ).fetchone()
        )
        blocker.execute("SELECT pg_sleep(1.1)")
        waited = db.execute("SELECT clock_timestamp()").fetchone()
        blocker.rollback()
    thread.join(20)
    assert waited is not None
    assert [slot.expires > waited[0] for slot in slots if slot] == [True]


def test_every_entrance_computes_the_slot_anew_from_the_schedule(make: MakeContext, db: Connection) -> None:
    """A decorator lives as long as its program: what it computed at its start would be over long ago."""
    context = make()
    calls: list[int] = []

    @with_locks(context, ["schedule"])
    def sync() -> None:
        calls.append(1)

    @aio.with_locks(context, ["schedule"])
    async def coroutine() -> None:
        calls.append(2)

    def block() -> None:
        with ScheduleLock(context):
            calls.append(3)

    async def asynchronous_block() -> None:
        async with aio.ScheduleLock(context):
            calls.append(4)

    year = datetime.now(timezone.utc).year
    for entrance in (sync, lambda: asyncio.run(coroutine()), block, lambda: asyncio.run(asynchronous_block())):
        db.execute("UPDATE key_value SET expire_at = now() - interval '1 day'")
        entrance()
        assert expiry(db, "schedule").astimezone(timezone.utc).year == year + 1
        with pytest.raises(LockNotAcquiredError):
            entrance()
    assert calls == [1, 2, 3, 4]
