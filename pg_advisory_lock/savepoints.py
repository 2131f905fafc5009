"""Savepoints: a lock taken inside one goes with a rollback to it. The caller is warned, and ``held()`` watches."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from pg_advisory_lock.errors import PgAdvisoryLockWarning


@dataclass(frozen=True)
class Place:
    """A line of the caller's program, to warn about from where the caller is not on the stack: from a greenlet."""

    filename: str
    line: int
    names: dict[str, Any]
    """The globals of the caller's module."""

    @classmethod
    def of_caller(cls) -> Place:
        """Where the function was called that calls this."""
        frame = sys._getframe(1).f_back
        # In a greenlet of its own, nothing called it. Python's own warnings then name sys as well.
        return (
            cls("<sys>", 0, vars(sys))
            if frame is None
            else cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
        )

    def warn(self, message: str, category: type[Warning]) -> None:
        """What ``warnings.warn`` does when it is called at that place."""
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

    The text is always the same, so that Python's default filter shows it once per place in the program.
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
        # The recipe for test suites: the savepoint stands for the session's whole transaction.
        if target.join_transaction_mode == "create_savepoint":
            return False
    return connection.in_nested_transaction()


class Surroundings:
    """The savepoints that were open when a lock was taken, as far as SQLAlchemy made them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: set[str] = set()
        savepoint = connection.get_nested_transaction()
        while savepoint is not None:
            # Events give the name and nothing else, and no public name of the object gives it.
            self._names.add(savepoint._savepoint)
            savepoint = savepoint._previous_nested
        self.broken = False
        """Whether one of them was rolled back while this was ``watched()``."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes a rollback inside the block; afterwards nobody could tell, where the lock was taken once more."""
        if not self._names:
            yield
            return
        listener = (self._connection, "rollback_savepoint", self._note)
        event.listen(*listener)
        try:
            yield
        finally:
            # A block that was abandoned ends when it is collected, and its connection's listeners perhaps before it.
            if event.contains(*listener):
                event.remove(*listener)

    def _note(self, _connection: Connection, name: str, _context: None) -> None:
        self.broken = self.broken or name in self._names
