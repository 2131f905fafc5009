"""Cancelling a statement whose sender is about to stop listening, and what an answer is worth after that."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from dislock.drivers.clock import clock
from dislock.drivers.connections import decline_signals
from dislock.protocol.steps import CANCELLED, ONLY_LOCAL

if TYPE_CHECKING:
    from psycopg.errors import Diagnostic
    from psycopg.pq.abc import PGcancelConn, PGconn

#: Seconds, at most, that a cancelled statement has to answer, before its sender stops listening.
CANCEL = 0.4
#: Seconds after which a request to cancel is given up.
CANCEL_SECONDS = 5.0


class Doubts:
    """Why the answer to the last statement proves nothing: it came after its cancellation, or with a WARNING.

    A handler of notices for one connection (psycopg's ``add_notice_handler``). PostgreSQL warns with SQLSTATE 01000 and
    reports success when it stops waiting for a standby; the text is translated, so nothing is read from it.
    """

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, diagnostic: Diagnostic) -> None:
        self._warned = self._warned or diagnostic.sqlstate == "01000"

    def begin(self) -> None:
        """A statement is about to be sent."""
        self._warned = False

    def of_answer(self, *, cancelled: bool) -> str:
        """The doubt, for people; empty without one."""
        if self._warned:
            return ONLY_LOCAL
        return CANCELLED if cancelled else ""


def cancel_time(by: float, now: float) -> float:
    """When to cancel a statement that is sent now and has to be answered by ``by``."""
    return by - min(CANCEL, (by - now) / 12)


def cancel(connection: PGconn) -> None:
    """Asks the server to drop the statement in flight; the statement's own answer tells whether it was.

    Without that, one that waits for somebody's lock would be carried out after whoever sent it has left, and take a
    lock for nobody. ``lock_timeout`` does not prevent it: a statement sets it for itself only when it has the lock on
    the table. Returns at once. Needs psycopg 3.2 with libpq 17: the older request for it blocks the whole interpreter.
    """
    import psycopg

    # NotSupportedError is a psycopg.Error; RuntimeError: no thread to be had.
    with suppress(psycopg.Error, RuntimeError, AttributeError):
        request = connection.cancel_conn()
        threading.Thread(target=_send, args=(request,), name="dislock-cancel", daemon=True).start()


def _send(request: PGcancelConn) -> None:
    import selectors

    import psycopg
    from psycopg.pq import PollingStatus

    decline_signals()
    end = clock() + CANCEL_SECONDS
    events: dict[int, int] = {PollingStatus.READING: selectors.EVENT_READ, PollingStatus.WRITING: selectors.EVENT_WRITE}
    # The request is a connection of its own, which can hang as any other.
    with suppress(psycopg.Error, OSError, ValueError):
        request.start()
        while (state := request.poll()) in events and (remaining := end - clock()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(request.socket, events[state])
                selector.select(remaining)
    request.finish()
