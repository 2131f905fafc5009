"""Sentences of the design that only a server, a fork or a wait can try."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from dislock import (
    LeaseLock,
    LeaseLostError,
    LockNotAcquiredError,
    LossReason,
    ScheduleLock,
    SlotOverError,
    acquire_locks,
    aio,
    run_with_locks,
    with_locks,
)
from dislock.holding import Holding
from dislock.protocol.schedule import Slot
from dislock.request import Request
from tests.integration.library.conftest import MakeContext
from tests.integration.process.test_init import NAMESPACE
from tests.integration.process.test_init import _possible as possible
from tests.support.proxy import Proxy
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
BOTH = ("schedule", "lease")


def expiry(db: Connection, kind: str) -> datetime:
    row = db.execute("SELECT expire_at FROM key_value WHERE key LIKE %s", (f"%:{kind}:%",)).fetchone()
    assert row is not None
    end: datetime = row[0]
    return end


# Slots


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
    with pytest.raises(SlotOverError), ScheduleLock(context):
        pytest.fail("a lock that holds nothing")


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

    async def block() -> None:
        async with aio.ScheduleLock(context):
            calls.append(3)

    year = datetime.now(timezone.utc).year
    for entrance in (sync, lambda: asyncio.run(coroutine()), lambda: asyncio.run(block())):
        db.execute("UPDATE key_value SET expire_at = now() - interval '1 day'")
        entrance()
        assert expiry(db, "schedule").astimezone(timezone.utc).year == year + 1
        with pytest.raises(LockNotAcquiredError):
            entrance()
    assert calls == [1, 2, 3]


# Leases


def test_between_two_renewals_no_transaction_is_open(make: MakeContext, db: Connection) -> None:
    with LeaseLock(make()):
        state = db.execute(
            "SELECT state, xact_start IS NOT NULL AND state <> 'idle' FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'dislock job'"
        ).fetchall()
    assert state == [("idle", False)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_leaving_takes_at_most_five_seconds_whatever_the_network_does(
    make: MakeContext, database_url: str, proxy: Proxy, asynchronous: bool
) -> None:
    context = make(url=proxy.url(database_url))
    before = [0.0]

    async def block() -> None:
        async with aio.LeaseLock(context):
            proxy.wedge()
            before[0] = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before[0] < 6

    if asynchronous:
        asyncio.run(block())
        return
    import time

    with LeaseLock(context):
        proxy.wedge()
        before[0] = time.monotonic()
    assert time.monotonic() - before[0] < 6


def test_a_loss_is_never_told_without_its_reason(make: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event may be set by whoever enters, before the renewing thread had any time."""
    over = threading.Event()
    keep = Holding._keep
    monkeypatch.setattr(Holding, "_keep", lambda self: (over.wait(20), keep(self)))
    acquire = Holding.acquire

    def held_up(self: Holding) -> bool:
        held = acquire(self)
        lease = self.acquisition.lease
        assert lease is not None
        from dislock.drivers.clock import clock

        until(lambda: lease.overdue(clock()))
        return held

    monkeypatch.setattr(Holding, "acquire", held_up)
    with pytest.raises(LeaseLostError), LeaseLock(make(run_ttl_seconds=0.3, lease_interval_seconds=0.1)) as session:
        assert session.lease_lost is not None
        assert session.lease_lost.is_set()
        try:
            assert session.loss is not None
            assert session.loss_reason is LossReason.UNCONFIRMED
        finally:
            over.set()


def test_the_policy_may_be_its_word(make: MakeContext, db: Connection) -> None:
    with acquire_locks(make(lease_loss_policy="Continue"), ["lease"]) as session:
        assert session.lease_lost is None
        db.execute("DELETE FROM key_value")


# Half a set of locks is none


@pytest.mark.parametrize("command", [["/no/such/command"], ["/etc"]])
def test_a_command_that_cannot_be_started_frees_slot_and_lease(
    make: MakeContext, live: Callable[[], set[str]], command: list[str]
) -> None:
    assert run_with_locks(command, make(), BOTH) in (126, 127)
    assert live() == set()
    assert run_with_locks(["true"], make(), BOTH) == 0
    assert live() == {"schedule"}


# Lock objects


@pytest.mark.parametrize("kind", [LeaseLock, aio.LeaseLock])
def test_a_second_use_asks_the_database_nothing(make: MakeContext, proxy: Proxy, database_url: str, kind: Any) -> None:
    context = make(url=proxy.url(database_url))
    lock = kind(context)

    async def enter() -> None:
        async with lock:
            pass

    def use() -> None:
        if kind is LeaseLock:
            with lock:
                pass
        else:
            asyncio.run(enter())

    use()
    before = proxy.accepted
    with pytest.raises(Exception, match="entered before"):
        use()
    assert proxy.accepted == before


# Forks

FORK = """
import asyncio, os, sys
from dislock import LockContext, aio

async def main():
    context = LockContext(url=sys.argv[1], table_parts=["key_value"], lock_key="job", owner="host:1",
                          run_ttl_seconds=5, lease_interval_seconds=0.1)
    async with aio.LeaseLock(context) as session:
        child = os.fork()
        if child == 0:
            return "child"
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        await asyncio.sleep(0.3)
        assert session.loss is None, session.loss
    return code

result = asyncio.run(main())
if result == "child":
    # As a child would end that has work of its own.
    os._exit(7)
sys.exit(0 if result == 7 else 1)
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="from CPython 3.15 on an event loop cannot go on in a forked child"
)
def test_a_fork_inside_an_asynchronous_block_leaves_the_parents_lease_alone(
    database_url: str, live: Callable[[], set[str]]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, database_url], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert live() == set()


# Which process runs the command


@pytest.mark.parametrize(("before", "first"), [([], True), (NAMESPACE, False)], ids=["elsewhere", "as PID 1"])
def test_a_schedule_only_run_becomes_the_command_but_not_as_pid_1(
    database_url: str, before: list[str], first: bool
) -> None:
    """As the first process of a container the wrapper has orphans to reap, and a command seldom knows how to."""
    if before and not possible():
        pytest.skip("no PID namespaces to be had")
    command = [sys.executable, "-m", "dislock", "--lock-key=job", "--schedule=0 0 1 1 *", "DATABASE_URL"]
    script = "echo $$ $PPID"
    done = subprocess.run(
        [*before, "sh", "-c", 'echo $$; exec "$@"', "sh", *command, "sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "DATABASE_URL": database_url},
    )
    assert (done.returncode, done.stderr) == (0, "")
    wrapper, ours, parent = done.stdout.split()
    assert (ours == wrapper) is first
    assert (parent == wrapper) is not first


def test_what_is_planned_is_the_lock_and_no_more(make: MakeContext) -> None:
    planned = Request(make(), ["lease", "schedule", "lease"])
    assert planned.strategies == BOTH
