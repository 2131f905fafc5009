"""The warnings to a caller: a lock inside a savepoint, and a session with more than one connection."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from pg_advisory_lock.errors import PgAdvisoryLockWarning


@dataclass(frozen=True)
class Place:
    """A line of the caller's program. In a greenlet the caller is not on the stack when the warning is given."""

    filename: str
    line: int
    names: dict[str, Any]
    """The globals of the caller's module."""

    @classmethod
    def of_caller(cls) -> Place:
        """The place that called the function that calls this."""
        frame = sys._getframe(1).f_back
        # In its own greenlet a function has no caller. Python's own warnings also name sys then.
        return (
            cls("<sys>", 0, vars(sys))
            if frame is None
            else cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
        )

    def warn(self, message: str, category: type[Warning]) -> None:
        """Warns like ``warnings.warn``, called at that place."""
        warnings.warn_explicit(
            message,
            category,
            self.filename,
            self.line,
            module=self.names.get("__name__") or "<unknown>",
            registry=self.names.setdefault("__warningregistry__", {}),
        )


def warn_if_in_savepoint(target: Session | Connection, connection: Connection, place: Place) -> None:
    """Warns that the lock will live in a savepoint.

    The text is always the same, so that Python's default filter shows it once for each place in the program.
    """
    if _in_savepoint(target, connection):
        place.warn(
            "an advisory lock taken inside begin_nested() is released by a rollback to that savepoint;"
            " take it before begin_nested() to keep it until the transaction ends",
            PgAdvisoryLockWarning,
        )


def _in_savepoint(target: Session | Connection, connection: Connection) -> bool:
    if isinstance(target, Session):
        if target.in_nested_transaction():
            return True
        # SQLAlchemy's recipe for test suites: the savepoint stands for the session's whole transaction.
        if target.join_transaction_mode == "create_savepoint":
            return False
    return connection.in_nested_transaction()


def warn_if_several_connections(target: Session | Connection, place: Place) -> None:
    """Warns that the lock may end before all rows that it guards are visible."""
    if isinstance(target, Session) and _open_connections(target) > 1:
        place.warn(
            "the session has more than one connection open and commits them one after the other, in an undefined order:"
            " the lock may be released before rows on another connection are visible; use a session of one database"
            " for what the lock guards",
            PgAdvisoryLockWarning,
        )


def _open_connections(session: Session) -> int:
    transaction = session.get_transaction()
    # No public name lists them. Each is listed twice: under itself and under its engine.
    return 0 if transaction is None else len({id(entry[0]) for entry in transaction._connections.values()})
