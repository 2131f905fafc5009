"""How every connection is opened, and how one that does not answer is ended."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import NotSupportedError

if TYPE_CHECKING:
    from psycopg import BaseConnection

#: The oldest PostgreSQL that understands the statements (``MATERIALIZED``).
OLDEST = 12
#: Seconds that saying goodbye to the server may take.
GOODBYE = 0.5


def options(parameters: dict[str, str], seconds: float) -> dict[str, Any]:
    """How every connection is opened: nothing wrapped in BEGIN and COMMIT, nothing prepared on the server, so that
    every mode of a pooler works. libpq's time limit only bounds how long an abandoned attempt lives on.
    """
    limit = {} if "connect_timeout" in parameters else {"connect_timeout": str(max(2, int(seconds) + 1))}
    return {**parameters, **limit, "autocommit": True, "prepare_threshold": None}


def check_server(connection: BaseConnection[Any]) -> None:
    """Raises ``NotSupportedError`` for a server that cannot hold a lock, by what it said of itself at the connection.

    A database that is spread over many machines has no one clock, and slots and leases are measured by one. A server
    that does not tell its version (some poolers pass none on) is left to the first statement.
    """
    info = connection.info
    said = info.parameter_status("server_version") or ""
    # Aurora DSQL tells itself from PostgreSQL only by the names of its hosts.
    marks = {
        "CockroachDB": info.parameter_status("crdb_version"),
        "YugabyteDB": "-YB-" in said,
        "Aurora DSQL": ".dsql." in info.host and info.host.endswith(".on.aws"),
    }
    if product := next((product for product, mark in marks.items() if mark), None):
        raise NotSupportedError(f"the server is {product}, whose hosts have no one clock: dislock needs PostgreSQL")
    if 0 < info.server_version < OLDEST * 10000:
        raise NotSupportedError(f"the server is PostgreSQL {said}: dislock needs {OLDEST} or newer")


def decline_signals() -> None:
    """Leaves signals to the threads of the program: a handler must not have to wait for one that waits for a server."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def sever(descriptor: int) -> None:
    """Ends the traffic on a connection's socket, so that whoever waits for its answer is woken by its end."""
    with suppress(OSError), socket.socket(fileno=socket.dup(descriptor)) as double:
        double.shutdown(socket.SHUT_RDWR)
