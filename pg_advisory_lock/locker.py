"""The synchronous locker: a thin layer over ``acquisition``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pg_advisory_lock import acquisition
from pg_advisory_lock.cautions import Place
from pg_advisory_lock.errors import LockHolder
from pg_advisory_lock.handles import Handle, Target, target_of
from pg_advisory_lock.identity import LockIdentity


class PgAdvisoryLock(LockIdentity):
    """One advisory lock of PostgreSQL, taken in a transaction of SQLAlchemy and released at the transaction's end.

    ``lock_args``: a list or tuple of ``str``, ``int`` and ``uuid.UUID`` that names the lock, for all processes that use
    the same database. ``raise_on_failure``: whether contention raises an error (the default) or returns False; nothing
    else ever returns False. ``shared``: a shared lock can have many holders, an exclusive lock has one. Arguments that
    cannot work raise ``PgAdvisoryLockError``.

    Every method takes a ``Session``, ``scoped_session`` or ``Connection``, which must stay in the same transaction for
    as long as the lock is needed. Before they send a statement, the methods raise ``PgAdvisoryLockError`` if a lock
    would guard nothing: under AUTOCOMMIT, without a transaction if ``autobegin=False`` forbids one, in a transaction
    that was prepared for a two-phase commit, on a database that is not PostgreSQL, and if the session does not say
    which database to use. They raise it after one statement, without a usable lock, on a standby, and if there proves
    to be no transaction: a COMMIT or ROLLBACK sent as text has ended it and the driver does not begin another one, or
    it is still being begun, in an event of the engine.

    Pending changes are flushed first, except by ``holders()``. Errors of the flush, the database and the driver pass
    through unchanged.
    """

    __slots__ = ()

    def lock(self, session: Handle, timeout_in_ms: int = 1000) -> bool:
        """Takes the lock. Waits for it in PostgreSQL's queue, at most ``timeout_in_ms`` milliseconds (0 to 2147483647).

        Returns True when the lock is held. On contention it raises ``PgAdvisoryLockTimeout``, or returns False in
        boolean mode; the transaction stays usable and the caller's ``lock_timeout`` is restored. 0 does not wait.

        A free lock costs one round trip, because a try comes first. It cannot overtake sessions that wait already:
        PostgreSQL refuses the try if anybody is in the queue, and on release it gives the lock to the head of the
        queue. A wait costs three more round trips, four if it fails; an exception also asks who is in the way.

        The wait ends at the first of: the grant, our timeout, a deadlock, a cancellation, a statement timeout. The last
        three pass through as the driver's errors, and the transaction stays usable.
        """
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return acquisition.acquire(target_of(session), self, timeout, Place.of_caller())

    def lock_immediate(self, session: Handle) -> bool:
        """Takes the lock if nobody holds it or waits for it; one round trip.

        Returns True when the lock is held. On contention it asks who is in the way and raises
        ``PgAdvisoryLockNotAcquired``, or returns False in boolean mode.

        It does not wait for the lock. It can wait for two other things, as ``lock()`` can: the flush of pending changes
        waits for transactions that have locked their rows, and the first statement of a SERIALIZABLE READ ONLY
        DEFERRABLE transaction waits for a safe snapshot, for as long as others write.
        """
        return acquisition.acquire_now(target_of(session), self, Place.of_caller())

    def held(self, session: Handle, timeout_in_ms: int = 1000) -> AbstractContextManager[None]:
        """``with locker.held(session):`` takes the lock like ``lock()`` and checks at the end that it is still held.

        Contention raises ``PgAdvisoryLockTimeout`` even in boolean mode, because a block cannot be skipped. Leaving the
        block raises ``PgAdvisoryLockLost`` if the transaction that took the lock was ended or prepared inside, its
        connection was lost, or a savepoint around the acquisition was rolled back. A block that is left by an exception
        is not checked. The check is one short statement, which looks for a mark that the statement which took the lock
        left in the transaction. ``held()`` does not release the lock: the end of the transaction does.
        """
        timeout = acquisition.checked_timeout(timeout_in_ms)
        return self._held(target_of(session), timeout, Place.of_caller())

    def holders(self, session: Handle) -> list[LockHolder]:
        """Who holds this lock or waits for it, in either mode: first the holders, then the waiters, the longest first.

        It is true for this moment and includes this session's own locks. Flushes nothing. Reads the server's lock table
        and activity, with the functions behind ``pg_locks`` and ``pg_stat_activity``.
        """
        return acquisition.list_holders(target_of(session), self)

    @contextmanager
    def _held(self, target: Target, timeout: int, place: Place) -> Iterator[None]:
        grip = acquisition.take_hold(target, self, timeout, place)
        yield
        acquisition.check_hold(target, self, grip, place)
