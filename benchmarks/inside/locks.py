"""Every library's way to take a lock and give it back, as its own documents show it. Runs in its environment."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

#: Gives the lock of a name; what it yields is held.
Take = Callable[[str], AbstractContextManager[Any]]


def context(url: str, key: str, ttl: float = 60.0, interval: float = 10.0, **more: Any) -> Any:
    from dislock import LockContext

    return LockContext(
        url=url,
        table_parts=["key_value"],
        lock_key=key,
        owner=f"{socket.gethostname()}:{os.getpid()}",
        run_ttl_seconds=ttl,
        lease_interval_seconds=interval,
        **more,
    )


def taker(library: str, url: str, ttl: float) -> tuple[Take, type[Exception]]:
    """How to take a lock, and what is raised when somebody else holds it; one that waits by itself raises nothing."""
    return {"dislock": _dislock, "pals": _pals, "sqlalchemy-dlock": _sadlock, "redis-lock": _redis}[library](url, ttl)


class NeverError(Exception):
    """Is raised by nobody."""


def _dislock(url: str, ttl: float) -> tuple[Take, type[Exception]]:
    from dislock import LeaseLock, LockNotAcquiredError

    return lambda name: LeaseLock(context(url, name, ttl, min(10.0, ttl * 0.3))), LockNotAcquiredError


def _pals(url: str, ttl: float) -> tuple[Take, type[Exception]]:
    import pals

    del ttl
    locker = pals.Locker("benchmarks", url)
    local = threading.local()

    def take(name: str) -> AbstractContextManager[Any]:
        # Its lock has a connection; it is made once for a thread, as its documents do.
        held = local.__dict__.setdefault("held", {})
        if name not in held:
            held[name] = locker.lock(name, acquire_timeout=60_000)
        lock: AbstractContextManager[Any] = held[name]
        return lock

    return take, NeverError


def _sadlock(url: str, ttl: float) -> tuple[Take, type[Exception]]:
    from sqlalchemy import create_engine
    from sqlalchemy_dlock import create_sadlock

    del ttl
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), pool_size=32)

    @contextlib.contextmanager
    def take(name: str) -> Iterator[None]:
        with engine.connect() as connection, create_sadlock(connection, name):
            yield

    return take, NeverError


def _redis(url: str, ttl: float) -> tuple[Take, type[Exception]]:
    import redis
    import redis_lock

    # Its waiting is a command that blocks for longer than this client's usual limit.
    client = redis.Redis.from_url(url, socket_timeout=None)
    # With renewal, as a lease has it.
    return lambda name: redis_lock.Lock(client, name, expire=max(1, int(ttl)), auto_renewal=True), NeverError
