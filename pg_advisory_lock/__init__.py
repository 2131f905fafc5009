"""Transaction-scoped PostgreSQL advisory locks for SQLAlchemy; the asyncio half is ``pg_advisory_lock.aio``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pg_advisory_lock.errors import (
    LockHolder,
    PgAdvisoryLockError,
    PgAdvisoryLockLost,
    PgAdvisoryLockNotAcquired,
    PgAdvisoryLockTimeout,
    PgAdvisoryLockWarning,
)
from pg_advisory_lock.keys import advisory_key

__all__ = [
    "LockHolder",
    "PgAdvisoryLock",
    "PgAdvisoryLockError",
    "PgAdvisoryLockLost",
    "PgAdvisoryLockNotAcquired",
    "PgAdvisoryLockTimeout",
    "PgAdvisoryLockWarning",
    "advisory_key",
]

if TYPE_CHECKING:
    from pg_advisory_lock.locker import PgAdvisoryLock
else:

    def __getattr__(name: str) -> object:
        # Late, so that whoever needs only the key (`pg_advisory_lock.keys`) does not pay for, or need, SQLAlchemy.
        if name == "PgAdvisoryLock":
            from pg_advisory_lock.locker import PgAdvisoryLock

            return PgAdvisoryLock
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
