"""The clocks and drivers of a lock: those that reach a server, unless a test has replaced them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dislock.drivers.clock import clock
from dislock.errors import DislockError

if TYPE_CHECKING:
    from dislock.context import LockContext
    from dislock.drivers.targets import Database


class Surroundings:
    """The real ones: the clocks of this machine, and the servers of the connection string."""

    def clock(self) -> float:
        """Seconds on the clock by which deadlines are kept."""
        return clock()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def threads(self, database: Database, context: LockContext, *, shares: bool) -> Any:
        """A driver for synchronous code; ``shares``: its connection is shared with other locks of this process."""
        if shares:
            from dislock.drivers.shared_threads import SharedThreads

            return SharedThreads(database, context.table_parts)
        from dislock.drivers.threads import Threads

        return Threads(database, context.table_parts)

    def tasks(self, database: Database, context: LockContext, *, shares: bool) -> Any:
        """The same for the event loop that runs."""
        if shares:
            from dislock.drivers.shared import SharedTasks

            return SharedTasks(database, context.table_parts)
        from dislock.drivers.aio import Tasks

        return Tasks(database, context.table_parts)


_REAL = Surroundings()
_replaced: Surroundings | None = None
_guard = threading.Lock()


def current() -> Surroundings:
    """The surroundings of a lock that is made now, in any thread."""
    return _replaced or _REAL


@contextmanager
def replaced(by: Surroundings) -> Iterator[None]:
    """Replaces the surroundings of all locks that are made in the block, in any thread of this process."""
    global _replaced  # noqa: PLW0603 - it also counts for threads that were started before the block
    with _guard:
        if _replaced is not None:
            raise DislockError("dislock.testing.in_memory() is in use already: one block at a time in a process")
        _replaced = by
    try:
        yield
    finally:
        _replaced = None
