"""Takes advisory locks in SQLAlchemy's transactions, and counts. Runs in a peer's environment.

arguments: SQLAlchemy's driver, "sync" or "async", connection string. Order: call and seconds. Answer: microseconds each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockNotAcquired
from sqlalchemy import create_engine, text

#: One waits a millisecond for a lock that somebody has; 0 means something else to everybody.
SHORT = 1
FREE = ["benchmarks", "free"]
TAKEN = ["benchmarks", "taken"]
BARE = "SELECT pg_try_advisory_xact_lock(4711)"


def refused(call: Callable[[], Any]) -> None:
    with contextlib.suppress(PgAdvisoryLockNotAcquired):
        call()


def calls(connection: Any) -> dict[str, Callable[[], Any]]:
    free, taken = PgAdvisoryLock(FREE), PgAdvisoryLock(TAKEN)
    asking, bare = PgAdvisoryLock(TAKEN, raise_on_failure=False), text(BARE)

    def held() -> None:
        with free.held(connection):
            pass

    return {
        "bare": lambda: connection.execute(bare),
        "lock": lambda: free.lock(connection),
        "lock_immediate": lambda: free.lock_immediate(connection),
        "held": held,
        "lock_immediate, taken": lambda: asking.lock_immediate(connection),
        "lock_immediate, taken, raising": lambda: refused(lambda: taken.lock_immediate(connection)),
        "lock, taken": lambda: asking.lock(connection, timeout_in_ms=SHORT),
    }


def async_calls(connection: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    from pg_advisory_lock.aio import PgAdvisoryLock as Async

    free, taken, asking, bare = Async(FREE), Async(TAKEN), Async(TAKEN, raise_on_failure=False), text(BARE)

    async def held() -> None:
        async with free.held(connection):
            pass

    async def raising() -> None:
        with contextlib.suppress(PgAdvisoryLockNotAcquired):
            await taken.lock_immediate(connection)

    return {
        "bare": lambda: connection.execute(bare),
        "lock": lambda: free.lock(connection),
        "lock_immediate": lambda: free.lock_immediate(connection),
        "held": held,
        "lock_immediate, taken": lambda: asking.lock_immediate(connection),
        "lock_immediate, taken, raising": raising,
        "lock, taken": lambda: asking.lock(connection, timeout_in_ms=SHORT),
    }


def orders() -> Any:
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        call, seconds = json.loads(line)
        yield call, float(seconds)


def answer(began: float, count: int) -> None:
    print(json.dumps((time.perf_counter() - began) / count * 1e6), flush=True)


def run(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as holder, engine.connect() as connection:
        PgAdvisoryLock(TAKEN).lock(holder)
        known = calls(connection)
        for call, seconds in orders():
            began, count, one = time.perf_counter(), 0, known[call]
            while time.perf_counter() - began < seconds or not count:
                with connection.begin():
                    one()
                count += 1
            answer(began, count)


async def run_async(url: str) -> None:
    from pg_advisory_lock.aio import PgAdvisoryLock as Async
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    async with engine.connect() as holder, engine.connect() as connection:
        await Async(TAKEN).lock(holder)
        known = async_calls(connection)
        for call, seconds in orders():
            began, count, one = time.perf_counter(), 0, known[call]
            while time.perf_counter() - began < seconds or not count:
                async with connection.begin():
                    await one()
                count += 1
            answer(began, count)
    await engine.dispose()


def main() -> None:
    driver, kind, url = sys.argv[1:4]
    url = url.replace("postgresql://", f"postgresql+{driver}://")
    if kind == "async":
        asyncio.run(run_async(url))
    else:
        run(url)


if __name__ == "__main__":
    main()
