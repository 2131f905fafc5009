"""What reached a server: its statements and its connections, read from its own log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.postgres import Postgres

#: For a ``Postgres`` whose traffic is to be counted.
SETTINGS = {
    "log_statement": "all",
    "log_connections": "on",
    "log_disconnections": "on",
    "log_line_prefix": "%p|%d|%a| ",
    # A line for each statement, none of the server's own business.
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
}
RECORD = re.compile(r"^(?P<pid>\d+)\|(?P<database>[^|]*)\|(?P<application>[^|]*)\| LOG:  (?P<text>.*)$", re.DOTALL)
STATEMENT = re.compile(r"(?:statement|execute [^:]*): (?P<sql>.*)", re.DOTALL)


@dataclass
class Traffic:
    """What came while it was watched; complete when the watching is over."""

    attempts: int = 0
    """Connections that reached the server, also those that it turned away."""
    connections: int = 0
    """Connections to the watched database that the server let in."""
    disconnections: int = 0
    statements: list[str] = field(default_factory=list)
    """In the order in which they came, blanks evened out; BEGIN and COMMIT count as any other."""
    backends: list[int] = field(default_factory=list)
    """The server process of each statement: statements of one connection have the same."""


@contextmanager
def watch(server: Postgres, database: str) -> Iterator[Traffic]:
    """Counts what reaches ``database`` on a server started with ``SETTINGS``, until the block is left.

    The server logs a statement before it carries it out and a connection before it is ready, so what was answered is
    counted. A disconnection may come a moment after the client has closed.
    """
    traffic = Traffic()
    start = server.log_path.stat().st_size
    yield traffic
    _read(traffic, server, start, database)


def _read(traffic: Traffic, server: Postgres, start: int, database: str) -> None:
    with server.log_path.open("rb") as file:
        file.seek(start)
        # A line of a statement after its first begins with a tab.
        log = file.read().decode(errors="replace").replace("\n\t", " ")
    for line in log.splitlines():
        record = RECORD.match(line)
        if record is None:
            continue
        text = record["text"]
        if text.startswith("connection received:"):
            traffic.attempts += 1
        if record["database"] != database:
            continue
        if text.startswith("connection authorized:"):
            traffic.connections += 1
        elif text.startswith("disconnection:"):
            traffic.disconnections += 1
        elif statement := STATEMENT.match(text):
            traffic.statements.append(" ".join(statement["sql"].split()))
            traffic.backends.append(int(record["pid"]))
