"""What a caller can catch, and what it is told. Nothing here needs SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

#: A queue can be long; a log line should not be. The exception itself carries all of them.
_MOST_NAMED = 5


@dataclass(frozen=True)
class LockHolder:
    """One server process (or prepared transaction) that holds a lock or waits for it, at the moment of the question."""

    pid: int | None
    """The server process; None for a transaction that was left prepared."""
    application_name: str
    """What the client calls itself; empty when it said nothing."""
    since: datetime | None
    """For a waiter, when its wait began. For a holder, when its present transaction began, because PostgreSQL keeps no
    time of the grant: a lock of that transaction was taken then or later; a lock of the whole session, as
    ``pg_advisory_lock()`` takes it, at any time. None where the server does not say (between two transactions, and for
    a prepared one), or hides it: without membership in ``pg_read_all_stats`` a role sees no times of other roles'
    transactions."""
    mode: str
    """``exclusive`` or ``shared``."""
    granted: bool
    """True for a holder, False for a waiter."""

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid is not None else "a prepared transaction"
        name = f" ({self.application_name})" if self.application_name else ""
        does = "holds it" if self.granted else "waits for it"
        since = f" since {self.since.isoformat(timespec='milliseconds')}" if self.since else ""
        return f"{who}{name} {does} {self.mode}{since}"


class PgAdvisoryLockError(Exception):
    """Base class of all that this package raises on purpose; itself raised for a use that cannot work.

    Errors of the database and the driver are never turned into it, but for a connection that the check of ``held()``
    finds lost.
    """


class PgAdvisoryLockNotAcquired(PgAdvisoryLockError):  # noqa: N818 - the name is promised
    """Somebody else holds the lock, or waits for it ahead of us.

    ``holders`` are those others who held the lock or waited for it just after the refusal. It is empty when they were
    gone by then, and when the question failed: the role may not ask, or somebody has locked a system catalog.
    """

    def __init__(
        self,
        message: str,
        *,
        lock_args: tuple[str, ...] = (),
        lock_key: int | None = None,
        holders: Sequence[LockHolder] = (),
    ) -> None:
        super().__init__(message)
        self.lock_args = lock_args
        self.lock_key = lock_key
        self.holders = tuple(holders)


class PgAdvisoryLockTimeout(PgAdvisoryLockNotAcquired):
    """``lock()`` did not get the lock within its time.

    ``__cause__`` is the driver's error as SQLAlchemy wraps it; None when ``timeout_in_ms`` was 0 and nothing waited.
    """


class PgAdvisoryLockLost(PgAdvisoryLockError):  # noqa: N818 - named like its promised siblings
    """A ``held()`` block came to its end without the lock it began with.

    The transaction that took the lock was committed, rolled back or lost with its connection inside the block, or a
    savepoint around the acquisition was rolled back. What ran after that ran unguarded, and may be committed already.
    Also raised when the transaction was prepared for a two-phase commit inside: it keeps its locks, but nothing can be
    asked in it. ``__cause__`` is the driver's error where the check itself found the connection lost.
    """


class PgAdvisoryLockWarning(UserWarning):
    """The lock may end earlier than the caller expects, or this package may be mixed with another of its name."""


def describe(holders: Sequence[LockHolder] | None) -> str:
    """Who is in the way, for a message; None where that could not be asked."""
    if holders is None:
        return "who holds it could not be asked"
    if not holders:
        return "nobody is seen holding it any more"
    named = "; ".join(map(str, holders[:_MOST_NAMED]))
    more = len(holders) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named
