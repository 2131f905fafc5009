"""Cancels a statement whose sender is about to stop listening, and judges an answer that comes after that."""

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

#: The longest time in seconds that a cancelled statement has to answer before its sender stops listening. The request
#: is a connection of its own: with TLS and across an ocean that is half a second and more.
CANCEL = 1.0
#: The same after a request to leave, which must not take long.
CANCEL_IN_LEAVING = 0.4
#: Seconds after which a request to cancel is given up.
CANCEL_SECONDS = 5.0


class Doubts:
    """Why the answer to the last statement proves nothing: it came after its cancellation, or with a WARNING.

    It is the handler of notices of one connection (psycopg's ``add_notice_handler``). If PostgreSQL stops waiting for a
    standby, it warns with SQLSTATE 01000 and reports success; the text is translated, so it is not read.
    """

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, diagnostic: Diagnostic) -> None:
        self._warned = self._warned or diagnostic.sqlstate == "01000"

    def begin(self) -> None:
        """Forgets earlier warnings: a statement is about to be sent."""
        self._warned = False

    def of_answer(self, *, cancelled: bool) -> str:
        """The doubt, for people; "" if there is none."""
        if self._warned:
            return ONLY_LOCAL
        return CANCELLED if cancelled else ""


def cancel_time(by: float, now: float) -> float:
    """When to cancel a statement that is sent now and must be answered by ``by``."""
    return by - min(CANCEL, (by - now) / 12)


def cancel(connection: PGconn) -> None:
    """Asks the server to cancel the statement in flight. The statement's own answer says whether that happened.

    Otherwise a statement that waits for somebody's lock could be carried out after its sender has left, and take a lock
    that nobody uses. ``lock_timeout`` does not prevent that: a statement sets it for itself only after it has the lock
    on the table. Returns at once. Needs psycopg 3.2 with libpq 17, because the older request for it blocks the whole
    interpreter; without them it does nothing.
    """
    import psycopg

    # NotSupportedError is a psycopg.Error; RuntimeError: no thread could be started.
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
    # The request is a separate connection, which can hang like any other.
    with suppress(psycopg.Error, OSError, ValueError):
        request.start()
        while (state := request.poll()) in events and (remaining := end - clock()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(request.socket, events[state])
                selector.select(remaining)
    request.finish()
