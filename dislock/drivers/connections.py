"""How every connection is opened, and how one that does not answer is ended."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import Any

#: Seconds that saying goodbye to the server may take.
GOODBYE = 0.5


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
