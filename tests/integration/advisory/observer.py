"""A connection beside the actors, which waits for what they do to be seen in the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

#: Seconds; only a machine that is busy with much else ever needs more than one.
_PATIENCE = 120.0


class Observer:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, statement: str, *parameters: object) -> Any:
        row = self._connection.execute(statement, parameters).fetchone()
        return None if row is None else row[0]

    def waiters(self) -> int:
        return int(
            self.ask(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"
            )
        )

    def until_waiting(self, number: int = 1) -> None:
        """Until so many backends wait for an advisory lock of this database."""
        self.until(lambda: self.waiters() == number)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < end, "the condition did not come about"
            time.sleep(0.01)

    def cancel(self, pid: int) -> None:
        assert self.ask("SELECT pg_cancel_backend(%s)", pid)

    def terminate(self, pid: int) -> None:
        assert self.ask("SELECT pg_terminate_backend(%s)", pid)
        self.until(lambda: not self.ask("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid))
