"""A real server whose ``clock_timestamp()`` is set by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from dislock.drivers.sql import compose, parameters
from dislock.protocol.statements import Statement
from tests.support.wait import until

#: The sequence holds the time: unlike a table's, its content is seen at once by every statement that is under way.
CLOCK = """
CREATE SCHEMA shadow;
CREATE SEQUENCE shadow.now MINVALUE 0 START 1;
CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$SELECT timestamptz 'epoch' + last_value::float8 * interval '1 microsecond' FROM shadow.now$$
"""
PATH = "shadow, pg_catalog, public"


class Real:
    """The statements of dislock on a real server, at times that the test sets."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.connections: list[psycopg.Connection[Any]] = []
        self.admin, self.other, self.sender = self.connect(), self.connect(), self.connect()
        self.admin.execute(CLOCK)

    def connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._url, autocommit=True, options=f"-c search_path={PATH.replace(' ', '')}")
        self.connections.append(connection)
        return connection

    def set_clock(self, micros: int) -> None:
        self.admin.execute("SELECT setval('shadow.now', %s)", [micros])

    def execute(self, statement: Statement, connection: psycopg.Connection[Any] | None = None) -> Any:
        cursor = (connection or self.admin).execute(compose(statement, ["key_value"]), parameters(statement))
        return tuple(cursor.fetchall())

    def rows(self) -> dict[str, tuple[str, int]]:
        found = self.admin.execute(
            "SELECT key, value, (extract(epoch FROM expire_at) * 1000000)::bigint FROM key_value"
        ).fetchall()
        return {key: (value, expire) for key, value, expire in found}

    def wait_until_blocked(self, pid: int, done: Callable[[], bool]) -> bool:
        """Whether the statement of that backend waits for a lock; False: it is done."""
        until(lambda: done() or self._blocked(pid))
        return not done()

    def _blocked(self, pid: int) -> bool:
        found = self.admin.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
        return found is not None and bool(found[0])


@pytest.fixture
def real(database_url: str) -> Iterator[Real]:
    server = Real(database_url)
    yield server
    for connection in server.connections:
        connection.close()
