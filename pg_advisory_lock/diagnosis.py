"""Who holds a lock or waits for it, and the error that says so."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from sqlalchemy import Connection

from pg_advisory_lock import statements
from pg_advisory_lock.errors import LockHolder, PgAdvisoryLockNotAcquired, PgAdvisoryLockTimeout, describe
from pg_advisory_lock.execution import ask, is_from_elsewhere, savepoint, text_of, undo
from pg_advisory_lock.identity import LockIdentity

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def holders_of(connection: Connection, lock: LockIdentity, *, others: bool = False) -> list[LockHolder]:
    """All holders and waiters; with ``others``, without the session that asks."""
    rows = ask(connection, statements.HOLDERS, key=lock.lock_key)
    return [
        LockHolder(
            pid=row.pid,
            application_name=text_of(row.application_name),
            since=None if row.since is None else _EPOCH + timedelta(microseconds=row.since),
            mode="shared" if row.shared else "exclusive",
            granted=row.granted,
        )
        for row in rows
        if not (others and row.own)
    ]


def refusal(connection: Connection, lock: LockIdentity, timeout: int | None) -> PgAdvisoryLockNotAcquired:
    """The error to raise on contention. ``timeout`` in milliseconds; None: the caller did not want to wait."""
    holders = _others_if_possible(connection, lock)
    waited = "" if timeout is None else f" within {timeout} ms"
    kind = PgAdvisoryLockNotAcquired if timeout is None else PgAdvisoryLockTimeout
    return kind(
        f"{lock} was not acquired{waited}: {describe(holders)}",
        lock_args=lock.lock_args,
        lock_key=lock.lock_key,
        holders=holders or (),
    )


def _others_if_possible(connection: Connection, lock: LockIdentity) -> list[LockHolder] | None:
    """The other holders and waiters; None if the question fails: the role may not ask, or a catalog is locked.

    The caller must get the refusal, whether or not the question who is in the way can be answered.
    """
    savepoint(connection)
    try:
        ask(connection, statements.WAIT_FOR_NO_CATALOG)
        # A session that holds the shared lock and wants the exclusive one is not in its own way.
        return holders_of(connection, lock, others=True)
    except Exception as error:
        if is_from_elsewhere(connection, error):
            raise
        return None
    finally:
        # Also after an answer, because it restores the caller's lock_timeout.
        undo(connection)
