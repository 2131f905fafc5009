"""How every connection is opened, and how one that does not answer is ended."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import NotSupportedError

if TYPE_CHECKING:
    from psycopg import BaseConnection
    from psycopg.pq.abc import PGconn

#: The oldest PostgreSQL that understands the statements (``MATERIALIZED``).
OLDEST = 12
#: Seconds that an orderly end of a connection may take.
GOODBYE = 0.5


def options(parameters: dict[str, str], seconds: float) -> dict[str, Any]:
    """The parameters of every connection: no BEGIN and COMMIT around a statement, and nothing prepared on the server,
    so that every mode of a pooler works. libpq's time limit only bounds how long an abandoned attempt lives.
    """
    limit = {} if "connect_timeout" in parameters else {"connect_timeout": str(max(2, int(seconds) + 1))}
    return {**parameters, **limit, "autocommit": True, "prepare_threshold": None}


def check_server(connection: BaseConnection[Any]) -> None:
    """Raises ``NotSupportedError`` for a server that cannot hold a lock, by what it reported while connecting.

    Slots and leases are measured by the server's clock, and a database on many machines has many. A server that does
    not report its version (some poolers do not pass it on) is left to the first statement.
    """
    info = connection.info
    said = info.parameter_status("server_version") or ""
    # Only the names of its hosts tell Aurora DSQL from PostgreSQL 16.
    marks = {
        "CockroachDB": info.parameter_status("crdb_version"),
        "YugabyteDB": "-YB-" in said,
        "Aurora DSQL": ".dsql." in info.host and info.host.endswith(".on.aws"),
    }
    if product := next((product for product, mark in marks.items() if mark), None):
        raise NotSupportedError(f"the server is {product}, which has no single clock: dislock needs PostgreSQL")
    if 0 < info.server_version < OLDEST * 10000:
        raise NotSupportedError(f"the server is PostgreSQL {said}: dislock needs {OLDEST} or newer")


def decline_signals() -> None:
    """Leaves signals to the program's other threads: a handler must not wait for a thread that waits for a server."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def sever(descriptor: int) -> None:
    """Shuts a connection's socket down, which wakes whoever waits for its answer."""
    with suppress(OSError), socket.socket(fileno=socket.dup(descriptor)) as double:
        double.shutdown(socket.SHUT_RDWR)


def take_news(connection: PGconn) -> None:
    """Reads what came on an idle connection; raises ``OperationalError`` if that is its end."""
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    # libpq raises where it reads the end of the socket; a FATAL message comes just before it.
    connection.consume_input()
    if connection.status != ConnStatus.OK:
        raise OperationalError(connection.get_error_message())
