"""What carries out the steps of a protocol: ``threads``, ``aio``, ``simulated``."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

#: Seconds that saying goodbye to the server may take.
GOODBYE = 0.5
#: The last part of ``steps.LINGER``, in seconds: the time for a statement to be called back, and to say so.
RECALL = 0.4


def clock() -> float:
    """Seconds on a clock that nobody sets and that runs on while the machine sleeps, where there is one.

    That is CLOCK_BOOTTIME on Linux (clock_gettime(2)).
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def options(parameters: dict[str, str], seconds: float) -> dict[str, Any]:
    """How every connection is opened: nothing wrapped in BEGIN and COMMIT, nothing prepared on the server, so that
    every mode of a pooler works. libpq's time limit only bounds how long an abandoned attempt lives on.
    """
    limit = {} if "connect_timeout" in parameters else {"connect_timeout": str(max(2, int(seconds) + 1))}
    return {**parameters, **limit, "autocommit": True, "prepare_threshold": None}


def sever(descriptor: int) -> None:
    """Ends the traffic on a connection's socket, so that whoever waits for its answer is woken by its end."""
    with suppress(OSError), socket.socket(fileno=socket.dup(descriptor)) as double:
        double.shutdown(socket.SHUT_RDWR)


def recall(connection: PGconn) -> None:
    """Asks the server to drop the statement in flight; the statement's own answer tells whether it was.

    Without that, one that waits for somebody's row lock would be carried out after whoever sent it has left, and take
    a lock for nobody. In a daemon thread: the request is a connection of its own, which can hang as any other.
    """
    import psycopg

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(psycopg.Error):
            request.cancel()

    # RuntimeError: no thread to be had.
    with suppress(psycopg.Error, RuntimeError):
        request = connection.get_cancel()
        threading.Thread(target=ask, name="dislock-recall", daemon=True).start()
