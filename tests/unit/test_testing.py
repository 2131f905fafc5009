"""``dislock.testing``: locks without a database keep the rules, sync and async."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LeaseLock,
    LeaseLostError,
    LockContext,
    LockNotAcquiredError,
    LockWaitEndedError,
    LossReason,
    ScheduleLock,
    acquire_locks,
    aio,
    build_locks,
    run_with_locks,
    with_locks,
)
from dislock.drivers import aio as drivers_aio
from dislock.drivers import memory, threads
from dislock.testing import Held, LockServer, in_memory
from tests.support.wait import until

START = datetime(2026, 3, 1, 3, 0, 1, tzinfo=timezone.utc)
LEASE, BOTH, ADVISORY = ("lease",), ("schedule", "lease"), ("advisory",)


def make(**changes: Any) -> LockContext:
    values = {
        "url": "postgresql://nobody.invalid/d",
        "lock_key": "job",
        "owner": "host:1",
        "schedule": "0 3 * * *",
        "run_ttl_seconds": 60.0,
    }
    return LockContext(**{**values, **changes})


ONE, OTHER = make(), make(owner="host:2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LockServer]:
    # Nobody looks at the clock from time to time: what is noticed was told.
    for driver in (threads, drivers_aio):
        monkeypatch.setattr(driver, "LONGEST_SLEEP", 3600)
    with in_memory(now=START) as server:
        yield server


def refused(context: LockContext, strategies: Any = LEASE) -> LockNotAcquiredError:
    with pytest.raises(LockNotAcquiredError) as error, acquire_locks(context, strategies):
        pass
    return error.value


def within(coroutine: Any) -> Any:
    """Runs it; a wait that does not end is a fault."""
    return asyncio.run(asyncio.wait_for(coroutine, 20))


# Who excludes whom


@pytest.mark.parametrize("strategies", [LEASE, BOTH, ADVISORY])
def test_two_contexts_with_one_key_exclude_each_other(server: LockServer, strategies: Any) -> None:
    with acquire_locks(ONE, strategies):
        assert "host:1" in str(refused(OTHER, strategies)) or strategies is ADVISORY
        with acquire_locks(make(lock_key="another"), strategies):
            pass
    if strategies is not BOTH:
        with acquire_locks(OTHER, strategies):
            assert server.holder("job") == "host:2"
    assert server.holder("job") is None


def test_sync_and_async_exclude_each_other(server: LockServer) -> None:
    async def attempt() -> None:
        with pytest.raises(LockNotAcquiredError):
            async with aio.LeaseLock(OTHER):
                pass

    async def hold() -> None:
        async with aio.acquire_locks(ONE, LEASE) as session:
            assert session.fencing_token > first
            await asyncio.to_thread(refused, OTHER)

    with LeaseLock(ONE) as session:
        first = session.fencing_token
        within(attempt())
    within(hold())


def test_each_way_to_lock_is_in_memory(server: LockServer) -> None:
    @with_locks(ONE, LEASE)
    def work() -> str | None:
        return server.holder("job")

    @aio.with_locks(ONE, LEASE)
    async def later() -> str | None:
        return server.holder("job")

    assert (work(), within(later())) == ("host:1", "host:1")
    slot, lease = build_locks(make(lock_key="built"), BOTH)
    with slot, lease:
        assert [each.strategy for each in server.held("built")] == ["lease", "schedule"]
    assert run_with_locks([sys.executable, "-c", "raise SystemExit(7)"], ONE, BOTH) == 7


def test_a_thread_of_the_program_is_in_the_block_too(server: LockServer) -> None:
    seen: list[str | None] = []

    def work() -> None:
        with LeaseLock(ONE):
            seen.append(server.holder("job"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["host:1"]


# What the test sees and does


def test_who_holds_what(server: LockServer) -> None:
    assert server.held() == []
    with acquire_locks(ONE, BOTH), acquire_locks(make(lock_key="web"), ADVISORY):
        lease, slot, advisory = server.held()
        assert (lease.key, lease.strategy, lease.owner) == ("job", "lease", "host:1")
        assert lease.expires is not None
        assert timedelta(seconds=59) < lease.expires - server.now < timedelta(seconds=61)
        assert slot == Held("job", "schedule", "host:1", datetime(2026, 3, 2, 3, tzinfo=timezone.utc))
        assert advisory == Held("web", "advisory", "host:1", None)
        assert server.held("web") == [advisory]
    assert server.held() == [slot]


def test_a_lease_taken_away_is_lost_at_once(server: LockServer) -> None:
    with pytest.raises(LeaseLostError) as error, LeaseLock(ONE) as session:
        assert session.lease_lost is not None
        session.check()
        server.take_away("job", by="host:9")
        assert session.lease_lost.is_set()
        assert server.holder("job") == "host:9"
    assert error.value.reason is LossReason.TAKEN
    assert "host:9" in str(error.value)
    assert server.holder("job") == "host:9", "who lost it does not free it"
    server.advance(60)
    with LeaseLock(ONE):
        pass


def test_a_lease_taken_away_ends_async_work(server: LockServer) -> None:
    async def work() -> None:
        server.take_away("job")
        await asyncio.sleep(60)

    with pytest.raises(LeaseLostError):
        within(aio.with_locks(ONE, LEASE)(work)())


def test_an_advisory_lock_is_taken_away_with_its_connection(server: LockServer) -> None:
    with pytest.raises(LeaseLostError), acquire_locks(ONE, ADVISORY) as session:
        server.take_away("job")
        assert session.lease_lost is not None
        assert session.lease_lost.is_set()
        assert server.holder("job") is None

    async def lose() -> None:
        async with aio.acquire_locks(ONE, ADVISORY) as session:
            server.take_away("job")
            assert session.lease_lost is not None
            await session.lease_lost.wait()

    with pytest.raises(LeaseLostError):
        within(lose())


def test_nothing_can_be_taken_from_nobody(server: LockServer) -> None:
    with pytest.raises(LookupError, match="'job'"):
        server.take_away("job")
    with ScheduleLock(ONE), pytest.raises(LookupError):
        server.take_away("job")
    with LeaseLock(ONE):
        pass
    with pytest.raises(LookupError):
        server.take_away("job")


def test_a_command_is_stopped_when_its_lease_is_taken_away(server: LockServer) -> None:
    codes: list[int] = []
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    thread = threading.Thread(target=lambda: codes.append(run_with_locks(command, ONE, LEASE)))
    thread.start()
    until(lambda: server.holder("job") == "host:1")
    server.take_away("job")
    thread.join(30)
    assert codes == [75]


# The clock


def test_a_lease_outlives_less_than_its_ttl_and_no_more(server: LockServer) -> None:
    with pytest.raises(LeaseLostError) as error, LeaseLock(ONE) as session:
        for _ in range(3):
            # Renewed in between.
            server.advance(40)
            assert session.loss is None
            assert server.holder("job") == "host:1"
        server.advance(61)
        assert session.loss_reason is LossReason.UNCONFIRMED
        assert server.holder("job") is None
        with LeaseLock(OTHER):
            assert server.holder("job") == "host:2"
    assert error.value.reason is LossReason.UNCONFIRMED


def test_the_clock_moves_for_async_locks_too(server: LockServer) -> None:
    async def hold() -> None:
        async with aio.LeaseLock(ONE) as session:
            assert session.lease_lost is not None
            server.advance(40)
            until_renewed = server.now + timedelta(seconds=50)
            while not (held := server.held("job")) or held[0].expires is None or held[0].expires < until_renewed:
                await asyncio.sleep(0)
            assert session.loss is None
            await asyncio.to_thread(server.advance, 61)
            await session.lease_lost.wait()

    with pytest.raises(LeaseLostError):
        within(hold())


def test_a_slot_is_taken_until_its_next_tick(server: LockServer) -> None:
    with ScheduleLock(ONE) as session:
        assert session.slot is not None
        assert session.slot.tick == datetime(2026, 3, 1, 3, tzinfo=timezone.utc)
    assert refused(OTHER, ("schedule",)).holder == "host:1"
    server.advance(86400)
    with ScheduleLock(OTHER) as session:
        assert session.slot is not None
        assert session.slot.tick == datetime(2026, 3, 2, 3, tzinfo=timezone.utc)


def test_each_statement_has_a_moment_of_its_own(server: LockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "clock", lambda: 1000.0)
    tokens = []
    for _ in range(3):
        with LeaseLock(ONE) as session:
            tokens.append(session.fencing_token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "5", True])
def test_the_clock_goes_forward_only(server: LockServer, seconds: Any) -> None:
    before = server.now
    with pytest.raises(ValueError, match="seconds"):
        server.advance(seconds)
    assert before <= server.now < before + timedelta(seconds=60)


def test_the_clock_starts_where_this_machines_is() -> None:
    before = datetime.now(timezone.utc)
    with in_memory() as server:
        assert abs(server.now - before) < timedelta(seconds=60)
    with pytest.raises(ValueError, match="zone"), in_memory(now=datetime(2026, 3, 1)):
        pass


# Waiting, and ticks that a success closes


@pytest.mark.parametrize("strategies", [LEASE, ADVISORY])
def test_waiting_until_it_is_free(server: LockServer, strategies: Any) -> None:
    waiting = replace(OTHER, wait_seconds=300)
    seen: list[str | None] = []

    def work() -> None:
        with acquire_locks(waiting, strategies):
            seen.append(server.holder("job"))

    async def later() -> None:
        async with aio.acquire_locks(waiting, strategies):
            seen.append(server.holder("job"))

    thread = threading.Thread(target=work)
    other = threading.Thread(target=lambda: within(later()))
    with acquire_locks(ONE, strategies):
        thread.start()
        other.start()
        assert server.holder("job") == "host:1"
    thread.join(20)
    other.join(20)
    assert seen == ["host:2", "host:2"]


@pytest.mark.parametrize("strategies", [LEASE, ADVISORY])
def test_a_wait_ends_when_the_clock_says_so(
    server: LockServer, strategies: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dislock")
    errors: list[BaseException] = []
    # The lease of the one who holds it must outlive the wait.
    holding = replace(ONE, run_ttl_seconds=3600)

    def work() -> None:
        try:
            with acquire_locks(replace(OTHER, wait_seconds=300), strategies):
                pass
        except LockNotAcquiredError as error:
            errors.append(error)

    with acquire_locks(holding, strategies) as session:
        thread = threading.Thread(target=work)
        thread.start()
        # Before that it is its time to connect that ends.
        until(lambda: "waiting for it" in caplog.text)

        def over() -> bool:
            server.advance(100)
            return not thread.is_alive()

        until(over)
        session.check()
    assert [type(error) for error in errors] == [LockWaitEndedError]
    assert server.holder("job") is None


def test_a_tick_that_only_a_success_closes(server: LockServer) -> None:
    one, other = (replace(each, slot_consumed_by="success") for each in (ONE, OTHER))
    with pytest.raises(ZeroDivisionError), acquire_locks(one, BOTH):
        raise ZeroDivisionError
    with acquire_locks(other, BOTH):
        pass
    assert [each[:3] for each in server.held()] == [("job", "schedule", "host:2")]
    assert "host:2" in str(refused(one, BOTH))


def test_an_async_wait_can_be_cancelled(server: LockServer) -> None:
    async def work() -> None:
        for strategies in (LEASE, ADVISORY):
            async with aio.acquire_locks(ONE, strategies):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(_enter(replace(OTHER, wait_seconds=300), strategies), 0.05)
            assert server.held() == []

    within(work())


async def _enter(context: LockContext, strategies: Any) -> None:
    async with aio.acquire_locks(context, strategies):
        pass


# The borders of the block


def test_a_url_is_checked_and_not_connected_to(server: LockServer) -> None:
    with pytest.raises(ConfigurationError, match="jdbc"):
        LeaseLock(make(url="jdbc:postgresql://h/d"))
    with pytest.raises(ConfigurationError, match="strateg"):
        acquire_locks(ONE, ("leese",))  # type: ignore[arg-type]


def descriptors() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate()), descriptors()
    with in_memory() as server:
        with acquire_locks(ONE, BOTH):
            pass
        assert server.held()
    assert (set(threading.enumerate()), descriptors()) == before
    nowhere = make(url="host=127.0.0.1 port=1", connect_timeout_seconds=0.2)
    with pytest.raises(DatabaseUnavailableError), LeaseLock(nowhere):
        pass
    with in_memory() as server:
        assert server.held() == []


def test_the_block_ends_by_an_exception_too() -> None:
    with pytest.raises(ZeroDivisionError), in_memory():
        raise ZeroDivisionError
    with in_memory():
        pass


def test_one_block_at_a_time(server: LockServer) -> None:
    with pytest.raises(DislockError, match="one block at a time"), in_memory():
        pass
    with LeaseLock(ONE):
        assert server.holder("job") == "host:1"


def test_a_lock_object_stays_on_its_side() -> None:
    outside, outside_async = LeaseLock(ONE), aio.LeaseLock(ONE)
    with in_memory():
        inside = LeaseLock(ONE)
        with pytest.raises(DislockError, match="other side"), outside:
            pass
        with pytest.raises(DislockError, match="other side"):
            within(outside_async.__aenter__())
    with pytest.raises(DislockError, match="other side"), inside:
        pass


def test_a_lock_held_beyond_the_block_can_be_left() -> None:
    with in_memory() as server:
        lock = LeaseLock(ONE)
        lock.__enter__()
    server.advance(40)
    lock.__exit__(None, None, None)
    assert server.held() == []
