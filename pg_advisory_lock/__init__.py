"""Transaction-scoped PostgreSQL advisory locks for SQLAlchemy; the asyncio half is ``pg_advisory_lock.aio``.

Importing this package, ``pg_advisory_lock.keys`` or ``pg_advisory_lock.errors`` does not load SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module

from pg_advisory_lock._twin import warn_of_twin

# Importing typing costs a program that needs only a key more than the key itself.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pg_advisory_lock.errors import (
        LockHolder,
        PgAdvisoryLockError,
        PgAdvisoryLockLost,
        PgAdvisoryLockNotAcquired,
        PgAdvisoryLockTimeout,
        PgAdvisoryLockWarning,
    )
    from pg_advisory_lock.keys import advisory_key
    from pg_advisory_lock.locker import PgAdvisoryLock

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

warn_of_twin(__path__[0])

# The module of each name; the others are in errors. No module is loaded before one of its names is used (PEP 562).
_HOMES = {"PgAdvisoryLock": "locker", "advisory_key": "keys"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
