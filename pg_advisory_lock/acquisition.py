"""Every rule of taking a lock and of checking it, for the sync and the async class.

All of it works on SQLAlchemy's synchronous objects. The asynchronous ones wrap these, and their ``run_sync`` calls the
functions below from the event loop.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row
from sqlalchemy.engine import RootTransaction

from pg_advisory_lock import statements
from pg_advisory_lock.cautions import Place, warn_if_in_savepoint, warn_if_several_connections
from pg_advisory_lock.diagnosis import holders_of, refusal
from pg_advisory_lock.errors import LockHolder, PgAdvisoryLockError, PgAdvisoryLockLost
from pg_advisory_lock.execution import ask, is_from_elsewhere, release, savepoint, text_of, undo
from pg_advisory_lock.handles import Target, connection_of, flush, guarding_connection_of
from pg_advisory_lock.identity import LockIdentity
from pg_advisory_lock.keys import is_truly
from pg_advisory_lock.sqlstate import LOCK_NOT_AVAILABLE, ends_connection, sqlstate
from pg_advisory_lock.transactions import is_prepared, no_transaction, open_transaction, server_is_idle

#: lock_timeout is a 32-bit number of milliseconds in PostgreSQL.
LONGEST_TIMEOUT_IN_MS = 2**31 - 1

#: No number comes twice in one process, so none comes twice in one transaction.
_TURNS = itertools.count(1)


@dataclass(frozen=True)
class Grip:
    """A lock that was taken: on which connection, and in which transaction, for SQLAlchemy and for the server."""

    connection: Connection
    transaction: RootTransaction
    pid: int
    began: int
    mark: int | None
    """What ``held()`` left in the transaction with the statement that took the lock; ``lock()`` leaves nothing."""


def checked_timeout(timeout_in_ms: int) -> int:
    """The timeout as a plain int. Raises ``PgAdvisoryLockError`` unless it is an int from 0 to 2147483647, no bool."""
    if is_truly(timeout_in_ms, bool) or not is_truly(timeout_in_ms, int):
        raise PgAdvisoryLockError(f"timeout_in_ms must be an int, not {type(timeout_in_ms).__name__}")
    timeout = int.__index__(timeout_in_ms)
    if not 0 <= timeout <= LONGEST_TIMEOUT_IN_MS:
        raise PgAdvisoryLockError(f"timeout_in_ms must be from 0 to {LONGEST_TIMEOUT_IN_MS}")
    return timeout


def acquire_now(target: Target, lock: LockIdentity, place: Place) -> bool:
    """``lock_immediate()``: returns True; on contention returns False or raises ``PgAdvisoryLockNotAcquired``."""
    connection = _prepare(target, place)
    if _try(connection, lock, next(_TURNS), marked=False) is not None:
        return True
    if lock.raise_on_failure:
        raise refusal(connection, lock, None)
    return False


def acquire(target: Target, lock: LockIdentity, timeout: int, place: Place) -> bool:
    """``lock()``: returns True; on contention returns False or raises ``PgAdvisoryLockTimeout``."""
    connection = _prepare(target, place)
    grip = _try_then_wait(connection, lock, timeout)
    if isinstance(grip, Grip):
        return True
    if lock.raise_on_failure:
        raise refusal(connection, lock, timeout) from grip
    return False


def take_hold(target: Target, lock: LockIdentity, timeout: int, place: Place) -> Grip:
    """The beginning of ``held()``: raises on contention even in boolean mode, because a block cannot be skipped."""
    connection = _prepare(target, place)
    grip = _try_then_wait(connection, lock, timeout, marked=True)
    if isinstance(grip, Grip):
        return grip
    raise refusal(connection, lock, timeout) from grip


def check_hold(target: Target, lock: LockIdentity, grip: Grip, place: Place) -> None:
    """The end of ``held()``: raises ``PgAdvisoryLockLost`` unless the transaction that took the lock still has it."""
    if is_prepared(grip.transaction):
        raise PgAdvisoryLockLost(
            f"{lock} cannot be checked at the end of the block: its transaction was prepared inside; call prepare()"
            " after the block"
        )
    try:
        why = _why_lost(grip)
    except Exception as error:
        lost = grip.connection.invalidated or ends_connection(error)
        if not lost or is_from_elsewhere(grip.connection, error):
            raise
        raise _lost(lock, "its connection was lost") from error
    if why:
        raise _lost(lock, why)
    # The block may have opened more connections.
    warn_if_several_connections(target, place)


def list_holders(target: Target, lock: LockIdentity) -> list[LockHolder]:
    """``holders()``."""
    return holders_of(connection_of(target), lock)


def _prepare(target: Target, place: Place) -> Connection:
    """The connection to lock on. Writes pending changes now, so that their failure does not look like contention."""
    connection = guarding_connection_of(target)
    warn_if_in_savepoint(target, connection, place)
    flush(target)
    warn_if_several_connections(target, place)
    return connection


def _try_then_wait(
    connection: Connection, lock: LockIdentity, timeout: int, *, marked: bool = False
) -> Grip | BaseException | None:
    """The lock; or the error that ended the wait for it; or None if there was no time to wait.

    The first try cannot overtake sessions that wait already: PostgreSQL refuses ``pg_try_advisory_xact_lock`` if the
    wanted mode conflicts with a holder *or with anybody in the queue*, and on release it gives the lock to the head of
    the queue before anybody else can see it free (``LockAcquireExtended`` and ``ProcLockWakeup`` in the server).
    """
    turn = next(_TURNS)
    return _try(connection, lock, turn, marked) or (_wait(connection, lock, timeout, turn, marked) if timeout else None)


def _try(connection: Connection, lock: LockIdentity, turn: int, marked: bool) -> Grip | None:
    row = ask(connection, statements.try_lock(lock.shared, marked), key=lock.lock_key, turn=turn).one()
    transaction = open_transaction(connection)
    if row.standby:
        raise PgAdvisoryLockError(
            "the server is a standby (in recovery): a lock there excludes nobody who locks on the primary, where the"
            " writes go; lock on a connection to the primary"
        )
    return _grip(connection, transaction, row, turn if marked else None) if row.taken else None


def _grip(connection: Connection, transaction: RootTransaction, row: Row[Any], mark: int | None) -> Grip:
    """The lock that was taken. Raises ``PgAdvisoryLockError`` if the statement was a transaction by itself."""
    grip = Grip(connection, transaction, row.pid, row.began, mark)
    # If the driver does not know, the server must be asked, which costs another round trip.
    if server_is_idle(connection) is None and _why_lost(grip):
        raise no_transaction()
    return grip


def _why_lost(grip: Grip) -> str | None:
    """Why the lock was lost; None while the transaction of the grip has it.

    A transaction's lock ends only with the transaction, or with a rollback to a savepoint around its acquisition, which
    also removes the mark. So the transaction and the mark prove the lock, with a statement that costs no more than the
    shortest one. Looking for the lock itself would read the whole lock table of the server (pg_locks).

    SQLAlchemy is asked first, because after a commit there may be no connection for a statement. The server is asked
    too, because SQLAlchemy does not know of a COMMIT or a ROLLBACK TO SAVEPOINT sent as text.
    """
    if not grip.transaction.is_active or server_is_idle(grip.connection):
        return "its transaction ended"
    row = ask(grip.connection, statements.MARKS).one()
    if (row.pid, row.began) != (grip.pid, grip.began):
        return "its transaction ended, and another one is open now"
    if grip.mark is None or str(grip.mark) in text_of(row.marks or "").split():
        return None
    return "a savepoint around it was rolled back"


def _lost(lock: LockIdentity, why: str) -> PgAdvisoryLockLost:
    return PgAdvisoryLockLost(f"{lock} is no longer held at the end of the block: {why}")


def _wait(connection: Connection, lock: LockIdentity, timeout: int, turn: int, marked: bool) -> Grip | BaseException:
    """The lock; or the error that says that the time is over. Raises any other error.

    The try before has left the mark. After any error that leaves the connection alive, the transaction is usable again
    and the caller's ``lock_timeout`` is restored.
    """
    savepoint(connection)
    try:
        row = ask(connection, statements.wait_lock(lock.shared), key=lock.lock_key, timeout=timeout, turn=turn).one()
    except BaseException as error:
        # The statement has no lock_timeout but ours, so this state says that ours has passed.
        contention = isinstance(error, Exception) and sqlstate(error) == LOCK_NOT_AVAILABLE
        try:
            undo(connection)
        except Exception:
            # The connection died in between, and the transaction is gone, so this is not contention. If the server
            # reported another error before, that one says more.
            if contention:
                raise
        if not contention:
            raise
        return error
    release(connection)
    return _grip(connection, open_transaction(connection), row, turn if marked else None)
