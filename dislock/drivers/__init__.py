"""What carries out the steps of a protocol: ``threads``, ``aio``, ``simulated``."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

#: Seconds that saying goodbye to the server may take.
GOODBYE = 0.5


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
