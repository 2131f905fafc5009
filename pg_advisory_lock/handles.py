"""Finds the connection of the transaction that a caller passes, or refuses it before any statement is sent."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import Connection, Dialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.orm import Session, scoped_session

from pg_advisory_lock.errors import PgAdvisoryLockError
from pg_advisory_lock.transactions import is_prepared

#: What the methods of the synchronous class accept.
Handle: TypeAlias = Session | scoped_session[Any] | Connection
#: The same, after a ``scoped_session`` was asked for the session of the current scope.
Target: TypeAlias = Session | Connection

#: They understand PostgreSQL's SQL, but the functions of the first lock nothing, and the second has none.
_WITHOUT_LOCKS = frozenset({"cockroachdb", "redshift"})


def target_of(handle: Handle) -> Target:
    """The session or connection behind the handle. Raises ``PgAdvisoryLockError`` for anything else."""
    found = handle() if isinstance(handle, scoped_session) else handle
    if isinstance(found, (Session, Connection)):
        return found
    raise PgAdvisoryLockError(
        f"the lock needs a Session, scoped_session or Connection with the transaction to guard, not"
        f" {type(handle).__name__}; for asyncio there is pg_advisory_lock.aio"
    )


def connection_of(target: Target) -> Connection:
    """The PostgreSQL connection of the target's transaction, which the next statement begins if necessary.

    Raises ``PgAdvisoryLockError`` if there can be no transaction, if it was prepared for a two-phase commit, and if the
    database is not known or is not PostgreSQL. Errors of connecting pass through.
    """
    connection = target if isinstance(target, Connection) else _session_s_connection(target)
    _require_postgresql(connection.dialect)
    if is_prepared(connection.get_transaction()):
        raise PgAdvisoryLockError(
            "the transaction was prepared for a two-phase commit and takes no more locks: lock before prepare(), or"
            " after commit()"
        )
    return connection


def _session_s_connection(target: Session) -> Connection:
    if not target.autobegin and not target.in_transaction():
        raise PgAdvisoryLockError(
            "the session has no transaction, and autobegin=False forbids opening one: call session.begin() first"
        )
    try:
        bind = target.get_bind()
    except Exception as error:
        raise PgAdvisoryLockError(
            "the session does not say which database to lock in: pass the connection instead, for example"
            ' session.connection(bind_arguments={"mapper": Model})'
        ) from error
    # Before a connection is opened.
    _require_postgresql(bind.dialect)
    # With this bind: a session that chooses among several may not give the same answer twice.
    return target.connection(bind_arguments={"bind": bind})


def guarding_connection_of(target: Target) -> Connection:
    """Like ``connection_of``, but also refuses AUTOCOMMIT, in which the lock would end with its statement."""
    connection = connection_of(target)
    # By the driver's own state, because AUTOCOMMIT can be set in many places: the engine, an option of the connection
    # or session, the driver's connect arguments, an event of the pool. A driver that does not say is refused too.
    if getattr(connection.connection.dbapi_connection, "autocommit", True):
        raise PgAdvisoryLockError(
            "the connection is in AUTOCOMMIT mode, where a transaction-scoped lock is released at once: use a"
            " connection of another isolation level, for example one of"
            ' engine.execution_options(isolation_level="READ COMMITTED"); a session must rollback() before it can have'
            " another"
        )
    return connection


def flush(target: Target) -> None:
    """Writes pending ORM changes, whatever ``autoflush`` is, as SQLAlchemy's own ``begin_nested()`` does.

    A lock can be taken in an event of a flush. Then that flush writes the rest.
    """
    # No public name says that a flush is under way, and a second flush inside it is an error.
    if isinstance(target, Session) and not target._flushing:
        target.flush()


def _require_postgresql(dialect: Dialect) -> None:
    # Not by the name: PostgreSQL with an extension can have its own dialect.
    if not isinstance(dialect, PGDialect) or dialect.name in _WITHOUT_LOCKS:
        raise PgAdvisoryLockError(f"the database is {dialect.name}; advisory locks need PostgreSQL")
