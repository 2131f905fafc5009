"""Every rule of taking a lock, of checking it and of telling who has it: once, for the sync and the async class.

All of it works on SQLAlchemy's synchronous objects. The asynchronous ones are shells around these, and their
``run_sync`` carries the functions below into the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Row, TextClause
from sqlalchemy.engine import RootTransaction
from sqlalchemy.exc import SQLAlchemyError

from pg_advisory_lock import statements
from pg_advisory_lock.errors import (
    LockHolder,
    PgAdvisoryLockError,
    PgAdvisoryLockLost,
    PgAdvisoryLockNotAcquired,
    PgAdvisoryLockTimeout,
    describe,
)
from pg_advisory_lock.handles import Target, connection_of, flush, guarding_connection_of
from pg_advisory_lock.identity import LockIdentity
from pg_advisory_lock.keys import is_truly
from pg_advisory_lock.savepoints import Place, Surroundings, warn_if_in_savepoint
from pg_advisory_lock.sqlstate import LOCK_NOT_AVAILABLE, causes, sqlstate
from pg_advisory_lock.transactions import (
    is_prepared,
    may_be_half_said,
    no_transaction,
    open_transaction,
    server_is_idle,
)

#: lock_timeout is a 32-bit number of milliseconds in PostgreSQL.
LONGEST_TIMEOUT_IN_MS = 2**31 - 1


@dataclass(frozen=True)
class Grip:
    """A lock that was taken: where, and in which transaction by SQLAlchemy's and by the server's account."""

    connection: Connection
    transaction: RootTransaction
    surroundings: Surroundings
    pid: int
    began: int


def checked_timeout(timeout_in_ms: int) -> int:
    """The timeout as a plain int; ``PgAdvisoryLockError`` unless it is an int from 0 to 2147483647 and not a bool."""
    if is_truly(timeout_in_ms, bool) or not is_truly(timeout_in_ms, int):
        raise PgAdvisoryLockError(f"timeout_in_ms must be an int, not {type(timeout_in_ms).__name__}")
    timeout = int.__index__(timeout_in_ms)
    if not 0 <= timeout <= LONGEST_TIMEOUT_IN_MS:
        raise PgAdvisoryLockError(f"timeout_in_ms must be from 0 to {LONGEST_TIMEOUT_IN_MS}")
    return timeout


def acquire_now(target: Target, lock: LockIdentity, place: Place) -> bool:
    """``lock_immediate()``: True, or on contention False or ``PgAdvisoryLockNotAcquired``."""
    connection = _prepare(target, place)
    if _try(connection, lock) is not None:
        return True
    if lock.raise_on_failure:
        raise _not_acquired(connection, lock, None)
    return False


def acquire(target: Target, lock: LockIdentity, timeout: int, place: Place) -> bool:
    """``lock()``: True, or on contention False or ``PgAdvisoryLockTimeout``."""
    connection = _prepare(target, place)
    grip = _try_then_wait(connection, lock, timeout)
    if isinstance(grip, Grip):
        return True
    if lock.raise_on_failure:
        raise _not_acquired(connection, lock, timeout) from grip
    return False


def take_hold(target: Target, lock: LockIdentity, timeout: int, place: Place) -> Grip:
    """The beginning of ``held()``: raises on contention even in boolean mode, because a block cannot be skipped."""
    connection = _prepare(target, place)
    grip = _try_then_wait(connection, lock, timeout)
    if isinstance(grip, Grip):
        return grip
    raise _not_acquired(connection, lock, timeout) from grip


def check_hold(_target: Target, lock: LockIdentity, grip: Grip) -> None:
    """The end of ``held()``: raises ``PgAdvisoryLockLost`` unless the transaction that took the lock still has it.

    The first argument is there because ``run_sync`` gives it; the grip remembers the connection.
    """
    if is_prepared(grip.transaction):
        raise PgAdvisoryLockLost(
            f"whether {lock} is held at the end of the block cannot be told: its transaction was prepared inside;"
            " call prepare() after the block"
        )
    if why := _why_lost(lock, grip):
        raise PgAdvisoryLockLost(f"{lock} is no longer held at the end of the block: {why}")


def list_holders(target: Target, lock: LockIdentity) -> list[LockHolder]:
    """``holders()``."""
    return _holders(connection_of(target), lock)


def _prepare(target: Target, place: Place) -> Connection:
    """The connection to lock on; pending changes are written now, so that their failure is not taken for ours."""
    connection = guarding_connection_of(target)
    warn_if_in_savepoint(target, connection, place)
    flush(target)
    return connection


def _try_then_wait(connection: Connection, lock: LockIdentity, timeout: int) -> Grip | BaseException | None:
    """The lock; or what ended the wait for it; or None when there was no time to wait.

    The first try cannot overtake those who wait already: PostgreSQL refuses ``pg_try_advisory_xact_lock`` whenever the
    wanted mode conflicts with a holder *or with anybody in the queue*, and on release it hands the lock to the head of
    the queue before anybody else can see it free (``LockAcquireExtended`` and ``ProcLockWakeup`` in the server).
    """
    return _try(connection, lock) or (_wait(connection, lock, timeout) if timeout else None)


def _try(connection: Connection, lock: LockIdentity) -> Grip | None:
    row = _ask(connection, statements.try_lock(lock.shared), key=lock.lock_key).one()
    transaction = open_transaction(connection)
    return _grip(connection, transaction, lock, row) if row.taken else None


def _grip(connection: Connection, transaction: RootTransaction, lock: LockIdentity, row: Row[Any]) -> Grip:
    """What was taken, or ``PgAdvisoryLockError`` when it was taken in a transaction of the statement's own."""
    grip = Grip(connection, transaction, Surroundings(connection), row.pid, row.began)
    # With a driver that does not tell, a round trip more: then the server has to.
    if server_is_idle(connection) is None and _why_lost(lock, grip):
        raise no_transaction()
    return grip


def _why_lost(lock: LockIdentity, grip: Grip) -> str | None:
    """None while the transaction of the grip has the lock.

    SQLAlchemy is asked first, because after a commit there may be no connection left to ask. The server is asked as
    well: SQLAlchemy does not know of a COMMIT sent as text, nor of locks that went with a savepoint.
    """
    if grip.connection.invalidated:
        return "its connection was lost"
    if not grip.transaction.is_active or server_is_idle(grip.connection):
        return "its transaction ended"
    if grip.surroundings.broken:
        return "a savepoint around it was rolled back"
    mode = statements.SHARED_MODE if lock.shared else statements.EXCLUSIVE_MODE
    row = _ask(grip.connection, statements.STILL_HELD, key=lock.lock_key, mode=mode).one()
    if (row.pid, row.began) != (grip.pid, grip.began):
        return "its transaction ended, and another one is open now"
    return None if row.held else "a savepoint around it was rolled back"


def _wait(connection: Connection, lock: LockIdentity, timeout: int) -> Grip | BaseException:
    """The lock; or the error that says that the time is over. Any other error is raised.

    After any error that leaves the connection alive, the rollback to the savepoint has made the transaction usable
    again and given the caller's ``lock_timeout`` back.
    """
    # A savepoint of the connection, not of the session: it leaves the session's objects as they are.
    savepoint = connection.begin_nested()
    try:
        row = _ask(connection, statements.wait_lock(lock.shared), key=lock.lock_key, timeout=str(timeout)).one()
    except BaseException as error:
        # The statement runs under no lock_timeout but ours, so this state says that ours ran out.
        contention = isinstance(error, Exception) and sqlstate(error) == LOCK_NOT_AVAILABLE
        try:
            savepoint.rollback()
        except Exception:
            # The connection died in between. Then the transaction is gone: it is not contention, and what the server
            # said before, if it was something else, is the better answer.
            if contention:
                raise
        if not contention:
            raise
        return error
    savepoint.commit()
    return _grip(connection, open_transaction(connection), lock, row)


def _ask(connection: Connection, statement: TextClause, **parameters: object) -> CursorResult[Any]:
    # Where the connection streams its results, the lock would be taken in a cursor, by three round trips.
    options = {"stream_results": False, "yield_per": None}
    try:
        return connection.execute(statement, parameters, execution_options=options)
    except Exception as error:
        # As SQLAlchemy does for KeyboardInterrupt: the next answer could be the one to this statement.
        if _is_from_elsewhere(connection, error) and may_be_half_said(connection):
            connection.invalidate(error)
        raise


def _is_from_elsewhere(connection: Connection, error: Exception) -> bool:
    """Whether it is neither the database's nor SQLAlchemy's: a signal handler raised, or an event of the engine."""
    known = (SQLAlchemyError, connection.dialect.loaded_dbapi.Error)
    return not any(isinstance(cause, known) for cause in causes(error))


def _holders(connection: Connection, lock: LockIdentity, *, others: bool = False) -> list[LockHolder]:
    rows = _ask(connection, statements.HOLDERS, key=lock.lock_key)
    return [
        LockHolder(
            pid=row.pid,
            application_name=row.application_name,
            since=row.since,
            mode="shared" if row.mode == statements.SHARED_MODE else "exclusive",
            granted=row.granted,
        )
        for row in rows
        if not (others and row.own)
    ]


def _holders_if_possible(connection: Connection, lock: LockIdentity) -> list[LockHolder]:
    """Like ``_holders``, but empty when the question fails; the role may not be allowed to read ``pg_locks``."""
    savepoint = connection.begin_nested()
    try:
        # Who holds the shared lock and wants the exclusive one is not in its own way.
        holders = _holders(connection, lock, others=True)
    except Exception as error:
        savepoint.rollback()
        if _is_from_elsewhere(connection, error):
            raise
        # The caller is owed the refusal, whatever became of the question who is in the way.
        return []
    savepoint.commit()
    return holders


def _not_acquired(connection: Connection, lock: LockIdentity, timeout: int | None) -> PgAdvisoryLockNotAcquired:
    holders = _holders_if_possible(connection, lock)
    waited = "" if timeout is None else f" within {timeout} ms"
    kind = PgAdvisoryLockNotAcquired if timeout is None else PgAdvisoryLockTimeout
    return kind(
        f"{lock} was not acquired{waited}: {describe(holders)}",
        lock_args=lock.lock_args,
        lock_key=lock.lock_key,
        holders=holders,
    )
