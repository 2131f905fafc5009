"""The synchronous locker: a shell around ``acquisition``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pg_advisory_lock import acquisition
from pg_advisory_lock.cautions import Place
from pg_advisory_lock.errors import LockHolder
from pg_advisory_lock.handles import Handle, Target, target_of
from pg_advisory_lock.identity import LockIdentity


class PgAdvisoryLock(LockIdentity):
    """One advisory lock of PostgreSQL, taken in a transaction of SQLAlchemy and released when that ends.

    ``lock_args``: list or tuple of ``str``, ``int`` and ``uuid.UUID`` that name the lock, across all processes that use
    the same database. ``raise_on_failure``: whether contention raises (the default) or returns False; nothing else is
    ever turned into False. ``shared``: many holders of the shared lock, or one of the exclusive. Arguments that cannot
    work raise ``PgAdvisoryLockError``.

    Every method takes a ``Session``, ``scoped_session`` or ``Connection``, which must stay in the same transaction for
    as long as the lock is needed. They raise ``PgAdvisoryLockError`` before any statement where a lock would guard
    nothing: under AUTOCOMMIT, without a transaction where ``autobegin=False`` forbids one, in a transaction that was
    prepared for a two-phase commit, on a database that is not PostgreSQL, and where the session cannot tell its
    database. They raise it after one statement, with no lock to rely on, on a standby, and where the transaction proves
    to be none: it was ended by a COMMIT or ROLLBACK sent as text and the driver begins no other, or it is only being
    begun, in an event of the engine. Errors of the database, the driver and the flush of pending changes, which comes
    first unless only ``holders()`` are asked for, pass through unchanged.
    """

    __slots__ = ()

    def lock(self, session: Handle, timeout_in_ms: int = 1000) -> bool:
        """Takes the lock, waiting in PostgreSQL's queue for up to ``timeout_in_ms`` milliseconds (0 to 2147483647).

        True when the lock is held. On contention raises ``PgAdvisoryLockTimeout``, or returns False in boolean mode;
        the transaction stays usable and the caller's ``lock_timeout`` is as it was. 0 does not wait.

        A free lock costs one round trip, because it is tried for first. That try cannot overtake those who wait
        already: PostgreSQL refuses it also when the lock is only queued for, and on release hands the lock to the head
        of the queue. A wait costs three more round trips, four if it fails; an exception also asks who is in the way.

        The wait ends at the first of: the grant, our timeout, a deadlock, a cancellation, a statement timeout. The
        last three pass through as the driver's errors, with the transaction usable as before.
        """
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return acquisition.acquire(target_of(session), self, timeout, Place.of_caller())

    def lock_immediate(self, session: Handle) -> bool:
        """Takes the lock if nobody holds it or waits for it; one round trip.

        True when the lock is held. On contention raises ``PgAdvisoryLockNotAcquired``, having asked who is in the way,
        or returns False in boolean mode.

        The lock itself is not waited for. Two other things can be, as in ``lock()``: the flush of pending changes waits
        for whoever has locked their rows, and the first statement of a SERIALIZABLE READ ONLY DEFERRABLE transaction
        waits for a safe snapshot, for as long as others write.
        """
        return acquisition.acquire_now(target_of(session), self, Place.of_caller())

    def held(self, session: Handle, timeout_in_ms: int = 1000) -> AbstractContextManager[None]:
        """``with locker.held(session):`` takes the lock like ``lock()`` and checks at the end that it is still held.

        Contention raises ``PgAdvisoryLockTimeout`` even in boolean mode, because a block cannot be skipped. Leaving the
        block raises ``PgAdvisoryLockLost`` when the transaction that took the lock was ended or prepared inside, its
        connection was lost, or a savepoint around the acquisition was rolled back; a block left by an exception is not
        checked. The check is one short statement: it looks for a mark that the statement which took the lock left in
        the transaction. ``held()`` does not release the lock: the end of the transaction does.
        """
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return self._held(target_of(session), timeout, Place.of_caller())

    def holders(self, session: Handle) -> list[LockHolder]:
        """Who holds this lock or waits for it, in either mode: holders first, the longest first.

        A view of the moment, this session's own locks included. Flushes nothing. Reads the server's lock table and
        activity, by the functions behind ``pg_locks`` and ``pg_stat_activity``.
        """
        return acquisition.list_holders(target_of(session), self)

    @contextmanager
    def _held(self, target: Target, timeout: int, place: Place) -> Iterator[None]:
        grip = acquisition.take_hold(target, self, timeout, place)
        yield
        acquisition.check_hold(target, self, grip, place)
