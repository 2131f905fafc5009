"""The errors and warnings for a caller. Nothing here needs SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

#: A queue can be long, but a log line should not be. The exception itself has all of them.
_MOST_NAMED = 5


@dataclass(frozen=True)
class LockHolder:
    """One server process (or prepared transaction) that holds a lock or waits for it, at the moment of the question."""

    pid: int | None
    """The server process; None for a transaction that was left prepared."""
    application_name: str
    """What the client calls itself; "" if it has no name."""
    since: datetime | None
    """For a waiter, when its wait began. For a holder, when its current transaction began, because PostgreSQL does not
    record when a lock was granted: a lock of that transaction was taken then or later; a lock of the whole session, as
    ``pg_advisory_lock()`` takes it, at any time. None if the server does not say (between two transactions, and for a
    prepared one), or hides it: without membership in ``pg_read_all_stats`` a role does not see the times of other
    roles' transactions."""
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
    """Base class of everything that this package raises on purpose. Itself it is raised for a use that cannot work.

    Errors of the database and the driver are never turned into it, with one exception: a connection that the check of
    ``held()`` finds lost.
    """


class PgAdvisoryLockNotAcquired(PgAdvisoryLockError):  # noqa: N818 - the name is promised
    """Somebody else holds the lock, or waits for it ahead of us.

    ``holders``: the others who held the lock or waited for it just after the refusal. It is empty if they were gone by
    then, and if the question failed: the role may not ask, or somebody has locked a system catalog.
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

    ``__cause__`` is the driver's error as SQLAlchemy wraps it; None if ``timeout_in_ms`` was 0, so that nothing waited.
    """


class PgAdvisoryLockLost(PgAdvisoryLockError):  # noqa: N818 - named like its promised siblings
    """A ``held()`` block lost its lock before it ended.

    The transaction that took the lock was committed, rolled back or lost with its connection inside the block, or a
    savepoint around the acquisition was rolled back. What ran after that ran unguarded, and may be committed already.
    Also raised if the transaction was prepared for a two-phase commit inside the block: it keeps its locks, but no
    statement can be sent in it. ``__cause__`` is the driver's error if the check itself found the connection lost.
    """


class PgAdvisoryLockWarning(UserWarning):
    """The lock may end earlier than the caller expects, or another package of this name may have overwritten files."""


def describe(holders: Sequence[LockHolder] | None) -> str:
    """Who is in the way, for a message. None: the question failed."""
    if holders is None:
        return "its holders could not be read"
    if not holders:
        return "its holder is gone by now"
    named = "; ".join(map(str, holders[:_MOST_NAMED]))
    more = len(holders) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named
