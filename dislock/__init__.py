"""Locks on PostgreSQL for cron jobs and commands: at most one start per cron tick, or one run at a time.

The locks here are for synchronous code; ``dislock.aio`` has those for asyncio under the same names. Importing this
package opens and logs nothing, and loads only the names that are used.
"""

from __future__ import annotations

from importlib import import_module

from dislock._version import __version__

# Importing typing costs the command line 7 ms at its start, before it can hold signals back.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dislock.command import run_with_locks
    from dislock.context import LeaseLossPolicy, LockContext
    from dislock.errors import (
        LEASE_LOST_EXIT_CODE,
        ConfigurationError,
        DatabaseUnavailableError,
        DislockError,
        LeaseLostError,
        LockNotAcquiredError,
        LockWaitEndedError,
        Loss,
        LossReason,
        NotSealedError,
        SlotOverError,
        UnknownOutcomeError,
    )
    from dislock.locks import LeaseLock, LockSession, ScheduleLock, acquire_locks, build_locks, with_locks

__all__ = [
    "LEASE_LOST_EXIT_CODE",
    "ConfigurationError",
    "DatabaseUnavailableError",
    "DislockError",
    "LeaseLock",
    "LeaseLossPolicy",
    "LeaseLostError",
    "LockContext",
    "LockNotAcquiredError",
    "LockSession",
    "LockWaitEndedError",
    "Loss",
    "LossReason",
    "NotSealedError",
    "ScheduleLock",
    "SlotOverError",
    "UnknownOutcomeError",
    "__version__",
    "acquire_locks",
    "build_locks",
    "run_with_locks",
    "with_locks",
]

# The module of each name. The command line starts every minute on many hosts and needs few of them, so none is loaded
# before it is used (PEP 562).
_HOMES = {
    "run_with_locks": "command",
    "LeaseLossPolicy": "context",
    "LockContext": "context",
    **dict.fromkeys(
        ("LeaseLock", "LockSession", "ScheduleLock", "acquire_locks", "build_locks", "with_locks"), "locks"
    ),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
