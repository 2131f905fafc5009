"""Sends a statement of this package on the caller's connection, and leaves the caller's transaction as it was."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import SQLAlchemyError

from pg_advisory_lock import statements
from pg_advisory_lock.sqlstate import causes
from pg_advisory_lock.transactions import may_be_half_said

#: On a connection that streams its results each statement would become a cursor: SAVEPOINT cannot be one, and a lock
#: would take three round trips.
_OPTIONS = {"stream_results": False, "yield_per": None}


def ask(connection: Connection, statement: statements.Statement, **values: int) -> CursorResult[Any]:
    """The result of the statement. Errors pass through."""
    try:
        clause = statement.for_driver(connection.dialect.driver)
        return connection.execute(clause, values, execution_options=_OPTIONS)
    except Exception as error:
        # As SQLAlchemy does for KeyboardInterrupt: the next answer could belong to this statement.
        if is_from_elsewhere(connection, error) and may_be_half_said(connection):
            connection.invalidate(error)
        raise


def is_from_elsewhere(connection: Connection, error: Exception) -> bool:
    """Whether neither the database nor SQLAlchemy raised it, but a signal handler or an event of the engine."""
    known = (SQLAlchemyError, connection.dialect.loaded_dbapi.Error)
    return not any(isinstance(cause, known) for cause in causes(error))


def text_of(value: str | bytes) -> str:
    """The value as text: some drivers return bytes if the client's encoding is SQL_ASCII."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


# Savepoints are sent as text and not by begin_nested(): SQLAlchemy would send it through a cursor if results are
# streamed. And it never releases a savepoint that it rolled back to, so the transaction would keep that level.


def savepoint(connection: Connection) -> None:
    """Sets the savepoint to which ``undo()`` rolls back."""
    ask(connection, statements.SAVEPOINT)


def release(connection: Connection) -> None:
    """Releases the savepoint and keeps what was done since."""
    ask(connection, statements.RELEASE_SAVEPOINT)


def undo(connection: Connection) -> None:
    """Rolls back to the savepoint and releases it. Does nothing on a connection that was lost."""
    if connection.closed or connection.invalidated:
        return
    ask(connection, statements.ROLLBACK_TO_SAVEPOINT)
    ask(connection, statements.RELEASE_SAVEPOINT)
