"""How every connection is opened, and how a connection that does not answer is ended."""

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
    """The parameters of a connection that is given up after ``seconds``.

    Statements are sent without BEGIN and COMMIT, and nothing is prepared on the server, so that every mode of a pooler
    works. libpq's own time limit only bounds how long an abandoned attempt lives.
    """
    limit = {} if "connect_timeout" in parameters else {"connect_timeout": str(max(2, int(seconds) + 1))}
    return {**parameters, **limit, "autocommit": True, "prepare_threshold": None}


def check_server(connection: BaseConnection[Any]) -> None:
    """Raises ``NotSupportedError`` for a server that cannot hold a lock, by what it reported while connecting.

    Slots and leases follow the server's clock, and a database on many machines has many clocks. If a server does not
    report its version (some poolers do not pass it on), the first statement shows whether it fits.
    """
    info = connection.info
    said = info.parameter_status("server_version") or ""
    # Aurora DSQL differs from PostgreSQL 16 only in the names of its hosts.
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
    """Blocks all signals in this thread, so that no handler waits for a thread that waits for a server."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def sever(descriptor: int) -> None:
    """Shuts down a connection's socket, which wakes the thread that waits for an answer."""
    with suppress(OSError), socket.socket(fileno=socket.dup(descriptor)) as double:
        double.shutdown(socket.SHUT_RDWR)


def take_news(connection: PGconn) -> None:
    """Reads what came on an idle connection. Raises ``OperationalError`` if the connection has ended."""
    from psycopg import OperationalError
    from psycopg.pq import ConnStatus

    # libpq raises where it reads the end of the socket; a FATAL message comes just before it.
    connection.consume_input()
    if connection.status != ConnStatus.OK:
        raise OperationalError(connection.get_error_message())
