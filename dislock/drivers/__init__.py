"""What carries out the steps of a protocol: ``threads``, ``aio``, ``simulated``."""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg.pq.abc import PGcancelConn, PGconn

#: Seconds that saying goodbye to the server may take.
GOODBYE = 0.5
#: Seconds, at most, that a statement has to say that it was dropped, before its sender stops listening.
RECALL = 0.4
#: Seconds after which a request to drop a statement is given up.
RECALL_SECONDS = 5.0


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


def decline_signals() -> None:
    """Leaves signals to the threads of the program: a handler must not have to wait for one that waits for a server."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def sever(descriptor: int) -> None:
    """Ends the traffic on a connection's socket, so that whoever waits for its answer is woken by its end."""
    with suppress(OSError), socket.socket(fileno=socket.dup(descriptor)) as double:
        double.shutdown(socket.SHUT_RDWR)


def recall_time(by: float, now: float) -> float:
    """When to call back a statement that is sent now and has to be answered by ``by``."""
    return by - min(RECALL, (by - now) / 12)


def recall(connection: PGconn) -> None:
    """Asks the server to drop the statement in flight; the statement's own answer tells whether it was.

    Without that, one that waits for somebody's lock would be carried out after whoever sent it has left, and take a
    lock for nobody. ``lock_timeout`` does not prevent it: a statement sets it for itself only when it has the lock on
    the table. Returns at once. Needs psycopg 3.2 with libpq 17: the older request for it blocks the whole interpreter.
    """
    import psycopg

    # NotSupportedError is a psycopg.Error; RuntimeError: no thread to be had.
    with suppress(psycopg.Error, RuntimeError, AttributeError):
        request = connection.cancel_conn()
        threading.Thread(target=_send, args=(request,), name="dislock-recall", daemon=True).start()


def _send(request: PGcancelConn) -> None:
    import selectors

    import psycopg
    from psycopg.pq import PollingStatus

    decline_signals()
    end = clock() + RECALL_SECONDS
    events: dict[int, int] = {PollingStatus.READING: selectors.EVENT_READ, PollingStatus.WRITING: selectors.EVENT_WRITE}
    # The request is a connection of its own, which can hang as any other.
    with suppress(psycopg.Error, OSError, ValueError):
        request.start()
        while (state := request.poll()) in events and (remaining := end - clock()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(request.socket, events[state])
                selector.select(remaining)
    request.finish()
