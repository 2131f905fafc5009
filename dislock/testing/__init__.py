"""Locks without a database, for tests of code that uses them.

In the block of ``in_memory`` every lock of this process, sync and async, works on a table in this process, by the same
rules as on a server. The command line cannot use this, and no environment variable turns it on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NamedTuple

from dislock.context import LEASE_PREFIX, SCHEDULE_PREFIX, Strategy, advisory_parts
from dislock.drivers import surroundings
from dislock.drivers.memory import Locked, MemoryServer
from dislock.drivers.memory_drivers import InMemory
from dislock.protocol.statements import to_moment

__all__ = ["Held", "LockServer", "in_memory"]

#: The owner of a lease that was taken away, unless the test names another one.
STRANGER = "somebody else"


class Held(NamedTuple):
    """One held lock, or one taken slot."""

    key: str
    """The lock key."""
    strategy: Strategy
    owner: str
    expires: datetime | None
    """When it expires unless it is renewed, in UTC; None for an advisory lock."""


class LockServer:
    """Shows a test the locks in its block, and acts on them. ``in_memory`` makes it; any thread can use it."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    @property
    def now(self) -> datetime:
        """The time of the server and of all locks, in UTC."""
        return datetime.fromtimestamp(self._server.wall(), timezone.utc)

    def advance(self, seconds: float) -> None:
        """Moves the clock of the server and of all locks forward, as if this machine had been suspended for that time.

        A lease whose TTL is then over is lost; one that has time left is renewed. Slots and waits end. When this
        returns, locks of synchronous code have seen it; locks of asyncio see it in the next rounds of the loop. Raises
        ``ValueError`` if ``seconds`` is negative or not finite.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be a finite number that is not negative, not {seconds!r}")
        self._server.advance(seconds)
        self._server.settle()

    def take_away(self, key: str, *, by: str = STRANGER, seconds: float = 60.0) -> None:
        """Takes the lease of that lock key away from its holder: ``by`` then has it for ``seconds``.

        An advisory lock is lost with its connection instead, and is then free. When this returns, locks of synchronous
        code have seen it; locks of asyncio see it in the next rounds of the loop. Raises ``LookupError`` if nobody
        holds a lease or an advisory lock with that key.
        """
        taken = self._server.seize(LEASE_PREFIX + key, by, seconds)
        if not taken and not self._server.cut(_advisory_number(key)):
            raise LookupError(f"nobody holds a lease or an advisory lock with the key {key!r}")
        self._server.settle()

    def held(self, key: str | None = None) -> list[Held]:
        """The held locks and the taken slots of that lock key; None: of all keys."""
        found = map(_shown, self._server.locked())
        return sorted(each for each in found if key in (None, each.key))

    def holder(self, key: str) -> str | None:
        """The owner of the lease or the advisory lock of that lock key; None if it is free. A slot has no holder."""
        return next((each.owner for each in self.held(key) if each.strategy != "schedule"), None)


@contextmanager
def in_memory(*, now: datetime | None = None) -> Iterator[LockServer]:
    """In the block every lock that this process makes works on an empty table in memory.

    ``now``: what the clock shows first; None: the time of this machine. URLs are checked, but not connected to: locks
    with the same key and the same ``table_parts`` exclude each other, whatever their URLs. No journal is kept. Locks
    that are held already stay with their servers. Raises ``DislockError`` inside another such block. A lock object that
    was made on one side of the block raises ``DislockError`` if it is entered on the other.
    """
    if now is not None and now.utcoffset() is None:
        raise ValueError("now must be a datetime with a time zone")
    server = MemoryServer(None if now is None else now.timestamp())
    with surroundings.replaced(InMemory(server)):
        yield LockServer(server)


def _advisory_number(key: str) -> int:
    from pg_advisory_lock.keys import advisory_key

    return advisory_key(advisory_parts(key))


def _shown(locked: Locked) -> Held:
    if locked.expires is None:
        return Held(locked.key, "advisory", locked.owner, None)
    ends = to_moment(locked.expires)
    if locked.key.startswith(LEASE_PREFIX):
        return Held(locked.key.removeprefix(LEASE_PREFIX), "lease", locked.owner, ends)
    return Held(locked.key.removeprefix(SCHEDULE_PREFIX), "schedule", locked.owner, ends)
