"""The asynchronous locks on a real server."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLostError,
    LockNotAcquiredError,
    LossReason,
    aio,
)
from dislock.drivers.shared import Leave, SharedTasks
from dislock.protocol.steps import Steps
from tests.integration.library.conftest import MakeContext
from tests.support.proxy import Proxy
from tests.support.wait import until as wait_until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
BOTH = ("schedule", "lease")


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Runs a test's coroutine; no task may be left behind by what it used."""

    async def checked() -> None:
        await main()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(checked())


def test_both_locks_are_held_and_the_lease_is_freed(
    make: MakeContext, live: Callable[[], set[str]], connections: Callable[[], int]
) -> None:
    async def main() -> None:
        async with aio.acquire_locks(make(), BOTH) as session:
            assert live() == {"schedule", "lease"}
            assert connections() == 1
            assert isinstance(session.lease_lost, asyncio.Event)
            assert session.fencing_token
            with pytest.raises(LockNotAcquiredError):
                async with aio.LeaseLock(make(owner="host:2")):
                    pytest.fail("two holders")
        assert live() == {"schedule"}

    run(main)
    # The server forgets a connection a moment after the client has closed it.
    wait_until(lambda: connections() == 0)


def test_a_slot_alone_keeps_no_connection_and_no_task(make: MakeContext, connections: Callable[[], int]) -> None:
    async def main() -> None:
        async with aio.ScheduleLock(make()) as session:
            assert session.lease_lost is None
            await until(lambda: connections() == 0)
            assert len(asyncio.all_tasks()) == 1

    run(main)


def test_build_locks_orders_schedule_first(make: MakeContext, live: Callable[[], set[str]]) -> None:
    async def main() -> None:
        schedule, lease = aio.build_locks(make(), ["lease", "schedule"])
        async with schedule, lease:
            assert live() == {"schedule", "lease"}

    run(main)


def test_a_loss_sets_the_event_and_raises_at_the_end(make: MakeContext, db: Connection) -> None:
    async def main() -> None:
        with pytest.raises(LeaseLostError) as caught:
            async with aio.LeaseLock(make(lease_interval_seconds=0.05)) as session:
                db.execute("UPDATE key_value SET value = 'thief:1'")
                assert session.lease_lost is not None
                await asyncio.wait_for(session.lease_lost.wait(), 10)
        assert caught.value.reason is LossReason.TAKEN

    run(main)


def test_a_loop_that_was_blocked_past_the_ttl_is_a_loss(make: MakeContext) -> None:
    async def main() -> None:
        with pytest.raises(LeaseLostError):
            async with aio.LeaseLock(make(run_ttl_seconds=0.5, lease_interval_seconds=0.1)):
                time.sleep(0.8)

    run(main)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else keeps the loop busy between the acquisition and the block until the lease has ended."""
    run_driver = SharedTasks.run

    async def slowly(self: SharedTasks, steps: Steps[Any], leave: Leave | None = None) -> Any:
        result = await run_driver(self, steps, leave)
        if leave is None and result is True:
            time.sleep(0.5)
        return result

    monkeypatch.setattr(SharedTasks, "run", slowly)


def test_a_block_entered_too_late_knows_it(make: MakeContext, held_up: None) -> None:
    async def main() -> None:
        with pytest.raises(LeaseLostError) as caught:
            async with aio.LeaseLock(make(run_ttl_seconds=0.4, lease_interval_seconds=0.1)) as session:
                assert session.lease_lost is not None
                assert session.lease_lost.is_set()
                assert session.loss_reason is LossReason.UNCONFIRMED
        assert caught.value.reason is LossReason.UNCONFIRMED

    run(main)


def test_a_coroutine_is_not_begun_too_late(make: MakeContext, held_up: None) -> None:
    begun = []

    @aio.with_locks(make(run_ttl_seconds=0.4, lease_interval_seconds=0.1), ["lease"])
    async def work() -> None:
        begun.append(True)

    with pytest.raises(LeaseLostError):
        run(work)
    assert not begun


def test_whoever_cancels_all_tasks_does_not_end_the_renewals(
    make: MakeContext, db: Connection, live: Callable[[], set[str]]
) -> None:
    """As programs do at their end: the clean-up of a block that was cancelled still needs its lease."""
    context = make(run_ttl_seconds=3, lease_interval_seconds=0.1)

    entered = asyncio.Event()

    def end() -> object:
        return db.execute("SELECT expire_at FROM key_value").fetchone()

    async def job() -> None:
        async with aio.LeaseLock(context) as session:
            assert session.lease_lost is not None
            try:
                entered.set()
                await asyncio.sleep(60)
            finally:
                for _ in range(3):
                    before = end()
                    await until(lambda before=before: end() != before)
                assert not session.lease_lost.is_set()

    async def main() -> None:
        task = asyncio.ensure_future(job())
        await entered.wait()
        task.cancel()
        for _ in range(5):
            for other in asyncio.all_tasks() - {asyncio.current_task(), task}:
                other.cancel()
            await asyncio.sleep(0.07)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert live() == set()

    run(main)


def test_a_lease_that_is_never_left_does_not_keep_a_program_from_its_end(make: MakeContext) -> None:
    sessions: list[aio.LockSession] = []

    async def main() -> None:
        sessions.append(await aio.LeaseLock(make()).__aenter__())

    asyncio.run(asyncio.wait_for(main(), 20))
    # The task that entered has ended, and all others were cancelled: nobody renews, and it is said.
    assert sessions[0].loss_reason is LossReason.UNCONFIRMED
    assert sessions[0].lease_lost is not None
    assert sessions[0].lease_lost.is_set()


def test_a_task_that_ends_without_leaving_its_block_leaves_a_loss(make: MakeContext) -> None:
    """The order in which all tasks are cancelled is chance: here the renewals are the first."""

    async def main() -> None:
        sessions: list[aio.LockSession] = []

        async def enter() -> None:
            sessions.append(await aio.LeaseLock(make(run_ttl_seconds=2, lease_interval_seconds=0.2)).__aenter__())
            for other in asyncio.all_tasks() - {asyncio.current_task(), task}:
                other.cancel()
            await asyncio.sleep(0.3)

        task = asyncio.current_task()
        await asyncio.ensure_future(enter())
        lost = sessions[0].lease_lost
        assert lost is not None
        await asyncio.wait_for(lost.wait(), 20)
        assert sessions[0].loss_reason is LossReason.UNCONFIRMED

    run(main)


def test_renewals_that_are_cancelled_before_they_began_begin_all_the_same(make: MakeContext, db: Connection) -> None:
    async def main() -> None:
        create, task = asyncio.get_running_loop().create_task, asyncio.current_task()
        cancelled: list[object] = []

        def cancel_first(coroutine: Any, **options: Any) -> Any:
            made = create(coroutine, **options)
            if coroutine.__name__ == "_keep" and not cancelled:
                cancelled.append(made.cancel())
            return made

        asyncio.get_running_loop().create_task = cancel_first  # type: ignore[method-assign] # at a known moment
        async with aio.LeaseLock(make(lease_interval_seconds=0.05)):
            assert cancelled
            assert task is asyncio.current_task()
            row = db.execute("SELECT expire_at FROM key_value").fetchone()
            await until(lambda: db.execute("SELECT expire_at FROM key_value").fetchone() != row)

    run(main)


@pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="from CPython 3.15 on an event loop cannot go on in a forked child"
)
def test_a_forked_child_that_ends_is_nothing_to_the_parents_lease(
    make: MakeContext, db: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    def backends() -> set[int]:
        rows = db.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'dislock%'")
        return {pid for (pid,) in rows}

    async def main() -> None:
        async with aio.LeaseLock(make(lease_interval_seconds=0.1)) as session:
            before = backends()
            child = os.fork()
            if child == 0:
                sys.exit(3)
            # Not in a thread: closing its loop, the child takes what wakes this one out of the epoll that both share.
            await until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            row = db.execute("SELECT expire_at FROM key_value").fetchone()
            await until(lambda: db.execute("SELECT expire_at FROM key_value").fetchone() != row)
            assert backends() == before
            assert session.loss is None

    parent = os.getpid()
    code = 4
    try:
        asyncio.run(main())
    except SystemExit as end:
        code = int(str(end.code))
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_an_error_of_the_coroutines_own_is_never_masked(make: MakeContext, db: Connection, how: str) -> None:
    begun = asyncio.Event()

    @aio.with_locks(make(lease_interval_seconds=0.05), ["lease"])
    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            raise ValueError("its own")

    async def main() -> None:
        task = asyncio.ensure_future(work())
        await begun.wait()
        if how == "cancelled":
            task.cancel()
        else:
            db.execute("DELETE FROM key_value")
        with pytest.raises(ValueError, match="its own"):
            await task

    run(main)


def test_what_is_no_coroutine_function_is_refused(make: MakeContext, live: Callable[[], set[str]]) -> None:
    guard: Any = aio.with_locks(make(), ["lease"])

    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> AsyncIterator[int]:
        yield 1

    def ordinary() -> int:
        return 1

    async def coroutine() -> int:
        return 1

    for function in (generator, asynchronous_generator):
        with pytest.raises(ConfigurationError, match="generator"):
            guard(function)
    with pytest.raises(ConfigurationError, match="ordinary"):
        run(guard(ordinary))
    with pytest.raises(ConfigurationError, match="generator"):
        run(guard(functools.partial(map, str, [])))
    with pytest.raises(ConfigurationError, match="generator"):
        run(guard(lambda: generator()))  # noqa: PLW0108 - an ordinary function around it
    assert asyncio.run(guard(functools.partial(coroutine))()) == 1
    assert live() == set()


def test_a_database_that_hangs_delays_a_loss_by_nothing(make: MakeContext, database_url: str, proxy: Proxy) -> None:
    context = make(url=proxy.url(database_url), run_ttl_seconds=1.5, lease_interval_seconds=0.3)

    async def main() -> None:
        with pytest.raises(LeaseLostError) as caught:
            async with aio.LeaseLock(context) as session:
                proxy.wedge()
                assert session.lease_lost is not None
                await asyncio.wait_for(session.lease_lost.wait(), 5)
        assert caught.value.reason is LossReason.UNCONFIRMED

    run(main)


def test_a_database_that_accepts_and_never_answers_ends_the_entry_in_time(
    make: MakeContext, database_url: str, proxy: Proxy
) -> None:
    async def main() -> None:
        proxy.wedge()
        with pytest.raises(DatabaseUnavailableError):
            await asyncio.wait_for(
                aio.LeaseLock(make(url=proxy.url(database_url), connect_timeout_seconds=0.5)).__aenter__(), 5
            )

    run(main)


def test_cancelled_while_entering_it_leaves_nothing_behind(
    make: MakeContext, database_url: str, live: Callable[[], set[str]], connections: Callable[[], int]
) -> None:
    async def main() -> None:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
            entering = asyncio.create_task(aio.acquire_locks(make(), BOTH).__aenter__())
            await until(lambda: connections() == 1)
            entering.cancel()
            await asyncio.sleep(0)
            blocker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await entering
        assert live() == set()

    run(main)
    # The server forgets a connection a moment after the client has closed it.
    wait_until(lambda: connections() == 0)


def test_a_second_cancel_while_leaving_still_frees_the_lease(
    make: MakeContext, database_url: str, proxy: Proxy, live: Callable[[], set[str]]
) -> None:
    entered = threading.Event()

    async def body() -> None:
        async with aio.LeaseLock(make(url=proxy.url(database_url))):
            entered.set()
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(body())
        await until(entered.is_set)
        proxy.delay(0.1)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert live() == set()

    run(main)


def test_a_timeout_around_the_block_frees_the_lease(make: MakeContext, live: Callable[[], set[str]]) -> None:
    async def body() -> None:
        async with aio.LeaseLock(make()):
            await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(body(), 0.5)
        assert live() == set()

    run(main)


def test_an_exception_from_the_block_is_never_masked(make: MakeContext, db: Connection) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with aio.LeaseLock(make()):
                db.execute("DELETE FROM key_value")
                raise ZeroDivisionError

    run(main)


def test_under_continue_a_loss_is_logged_and_no_more(
    make: MakeContext, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with aio.LeaseLock(make(lease_loss_policy="continue")) as session:
            assert session.lease_lost is None
            db.execute("DELETE FROM key_value")

    run(main)
    assert "lost" in caplog.text


def test_the_decorator_takes_the_locks_anew_and_keeps_the_metadata(
    make: MakeContext, live: Callable[[], set[str]]
) -> None:
    @aio.with_locks(make(), ["lease"])
    async def work(number: int) -> int:
        """Doc."""
        assert live() == {"lease"}
        return number * 2

    async def main() -> None:
        assert [await work(1), await work(2)] == [2, 4]
        assert live() == set()

    run(main)
    assert (work.__name__, work.__doc__) == ("work", "Doc.")


def test_the_decorator_cancels_its_coroutine_on_a_loss(make: MakeContext, db: Connection) -> None:
    ended = []

    @aio.with_locks(make(lease_interval_seconds=0.05), ["lease"])
    async def work() -> None:
        db.execute("DELETE FROM key_value")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        with pytest.raises(LeaseLostError) as caught:
            await work()
        assert caught.value.reason is LossReason.REMOVED
        assert ended == [True]

    run(main)


def test_a_cancelled_call_has_ended_before_its_lease_is_freed(make: MakeContext, live: Callable[[], set[str]]) -> None:
    seen = []
    entered = threading.Event()

    @aio.with_locks(make(), ["lease"])
    async def work() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            # Cleaning up takes time, and is done under the lock.
            await asyncio.sleep(0.1)
            seen.append(live())

    async def main() -> None:
        task = asyncio.create_task(work())
        await until(entered.is_set)
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert live() == set()

    run(main)
    assert seen == [{"lease"}]


def test_an_error_of_a_guarded_coroutine_comes_out_as_it_is(make: MakeContext) -> None:
    @aio.with_locks(make(), ["lease"])
    async def work() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await work()

    run(main)


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
