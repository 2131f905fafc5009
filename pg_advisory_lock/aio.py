"""The asynchronous locker: the same names, for ``AsyncSession`` and ``AsyncConnection``.

A thin layer over ``acquisition``: SQLAlchemy's ``run_sync`` calls its functions from the event loop, so no rule exists
twice. Needs SQLAlchemy's asyncio extra (``greenlet``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

import pg_advisory_lock
from pg_advisory_lock import acquisition
from pg_advisory_lock._twin import warn_of_twin
from pg_advisory_lock.cautions import Place
from pg_advisory_lock.errors import LockHolder, PgAdvisoryLockError
from pg_advisory_lock.identity import LockIdentity

# Here too, because the package's own __init__ may have been overwritten.
warn_of_twin(pg_advisory_lock.__path__[0])

AsyncHandle: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection
AsyncTarget: TypeAlias = AsyncSession | AsyncConnection


class PgAdvisoryLock(LockIdentity):
    """``pg_advisory_lock.PgAdvisoryLock`` for asyncio: same arguments, same keys, same errors.

    Its methods take an ``AsyncSession``, ``async_scoped_session`` or ``AsyncConnection``. If a task is cancelled while
    it waits, SQLAlchemy closes the connection: the transaction is lost, and so is every lock in it.
    """

    __slots__ = ()

    async def lock(self, session: AsyncHandle, timeout_in_ms: int = 1000) -> bool:
        """See ``pg_advisory_lock.PgAdvisoryLock.lock``."""
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return await _async_target_of(session).run_sync(acquisition.acquire, self, timeout, Place.of_caller())

    async def lock_immediate(self, session: AsyncHandle) -> bool:
        """See ``pg_advisory_lock.PgAdvisoryLock.lock_immediate``."""
        return await _async_target_of(session).run_sync(acquisition.acquire_now, self, Place.of_caller())

    def held(self, session: AsyncHandle, timeout_in_ms: int = 1000) -> AbstractAsyncContextManager[None]:
        """``async with locker.held(session):``; see ``pg_advisory_lock.PgAdvisoryLock.held``."""
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return self._held(_async_target_of(session), timeout, Place.of_caller())

    async def holders(self, session: AsyncHandle) -> list[LockHolder]:
        """See ``pg_advisory_lock.PgAdvisoryLock.holders``."""
        return await _async_target_of(session).run_sync(acquisition.list_holders, self)

    @asynccontextmanager
    async def _held(self, target: AsyncTarget, timeout: int, place: Place) -> AsyncIterator[None]:
        grip = await target.run_sync(acquisition.take_hold, self, timeout, place)
        yield
        await target.run_sync(acquisition.check_hold, self, grip, place)


def _async_target_of(handle: AsyncHandle) -> AsyncTarget:
    found = handle() if isinstance(handle, async_scoped_session) else handle
    if isinstance(found, (AsyncSession, AsyncConnection)):
        return found
    raise PgAdvisoryLockError(
        "the lock needs an AsyncSession, async_scoped_session or AsyncConnection with the transaction to guard, not"
        f" {type(handle).__name__}; without asyncio there is pg_advisory_lock.PgAdvisoryLock"
    )
