"""Takes advisory locks in SQLAlchemy's transactions, and counts. Runs in a peer's environment.

arguments: SQLAlchemy's driver, "sync" or "async", connection string. Order: call and seconds. Answer:
microseconds each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockNotAcquired

#: One waits a millisecond for a lock that somebody has; 0 means something else to everybody.
SHORT = 1
FREE = ["benchmarks", "free"]
TAKEN = ["benchmarks", "taken", os.getpid()]
BARE = "SELECT pg_try_advisory_xact_lock(4711)"


def refused(call: Callable[[], Any]) -> None:
    with contextlib.suppress(PgAdvisoryLockNotAcquired):
        call()


def calls(session: Any) -> dict[str, Callable[[], Any]]:
    free, taken = PgAdvisoryLock(FREE), PgAdvisoryLock(TAKEN)
    asking, bare = PgAdvisoryLock(TAKEN, raise_on_failure=False), text(BARE)

    def held() -> None:
        with free.held(session):
            pass

    return {
        "bare": lambda: session.execute(bare),
        "lock": lambda: free.lock(session),
        "lock_immediate": lambda: free.lock_immediate(session),
        "held": held,
        "lock_immediate, taken": lambda: asking.lock_immediate(session),
        "lock_immediate, taken, raising": lambda: refused(lambda: taken.lock_immediate(session)),
        "lock, taken": lambda: asking.lock(session, timeout_in_ms=SHORT),
    }


def async_calls(session: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    from pg_advisory_lock.aio import PgAdvisoryLock as Async

    free, taken, asking, bare = Async(FREE), Async(TAKEN), Async(TAKEN, raise_on_failure=False), text(BARE)

    async def held() -> None:
        async with free.held(session):
            pass

    async def raising() -> None:
        with contextlib.suppress(PgAdvisoryLockNotAcquired):
            await taken.lock_immediate(session)

    return {
        "bare": lambda: session.execute(bare),
        "lock": lambda: free.lock(session),
        "lock_immediate": lambda: free.lock_immediate(session),
        "held": held,
        "lock_immediate, taken": lambda: asking.lock_immediate(session),
        "lock_immediate, taken, raising": raising,
        "lock, taken": lambda: asking.lock(session, timeout_in_ms=SHORT),
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
    # A session on a connection that it keeps.
    with Session(engine) as holder, engine.connect() as connection, Session(connection) as session:
        PgAdvisoryLock(TAKEN).lock(holder)
        known = calls(session)
        for call, seconds in orders():
            began, count, one = time.perf_counter(), 0, known[call]
            while time.perf_counter() - began < seconds or not count:
                with session.begin():
                    one()
                count += 1
            answer(began, count)


async def run_async(url: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from pg_advisory_lock.aio import PgAdvisoryLock as Async

    engine = create_async_engine(url)
    async with AsyncSession(engine) as holder, engine.connect() as connection, AsyncSession(connection) as session:
        await Async(TAKEN).lock(holder)
        known = async_calls(session)
        for call, seconds in orders():
            began, count, one = time.perf_counter(), 0, known[call]
            while time.perf_counter() - began < seconds or not count:
                async with session.begin():
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
