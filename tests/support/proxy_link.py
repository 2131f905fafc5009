"""One connection through the proxy: two sockets, and what is under way between them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field

CHUNK = 65536
#: More than this under way in one direction, and its source has to wait.
UNDER_WAY = 16 * CHUNK


@dataclass(frozen=True)
class Trap:
    """The answer to the next request with these bytes in it is lost."""

    request: bytes
    then_cut: bool
    """Whether the connection is cut then, or falls silent."""
    lost: threading.Event
    """Set when the answer came from the server."""


@dataclass
class Troubles:
    """What the network does at present; shared by all connections of a proxy."""

    delay: float = 0.0
    wedged: bool = False
    deaf: bool = False
    """Nothing that servers say reaches the clients."""
    trap: Trap | None = None


@dataclass
class Direction:
    source: socket.socket
    sink: socket.socket
    under_way: deque[tuple[float, bytes]] = field(default_factory=deque)
    """When to deliver, and what."""
    ended: bool = False
    """The source has said its last."""
    passed_on: bool = False
    """And the sink has been told."""
    lost: bool = False
    """Whatever the source says from now on goes nowhere."""


class Link:
    """The two sockets of a connection. ``cut`` and ``over`` say what its owner has to do with it."""

    def __init__(
        self, client: socket.socket, server: socket.socket, selector: selectors.BaseSelector, troubles: Troubles
    ) -> None:
        self.client, self.server, self.troubles = client, server, troubles
        self.requests = Direction(client, server)
        self.answers = Direction(server, client)
        self.cut = False
        self._sprung: Trap | None = None
        self._selector = selector
        for sock in (client, server):
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.arrange()

    @property
    def over(self) -> bool:
        return self.requests.passed_on and self.answers.passed_on

    @property
    def due(self) -> float:
        """When ``flush`` has something to do, by the monotonic clock."""
        if self.troubles.wedged:
            return float("inf")
        heads = (direction.under_way[0][0] for direction in self._directions if direction.under_way)
        # What is due and could not be sent waits for its socket, not for the clock.
        return min((head for head in heads if head > time.monotonic()), default=float("inf"))

    @property
    def _directions(self) -> tuple[Direction, Direction]:
        return (self.requests, self.answers)

    def arrange(self) -> None:
        """Tells the selector what to wait for."""
        for inward, outward in ((self.requests, self.answers), (self.answers, self.requests)):
            events = 0
            if not self.troubles.wedged:
                waiting = sum(len(data) for _, data in inward.under_way)
                if not inward.ended and waiting < UNDER_WAY:
                    events |= selectors.EVENT_READ
                if outward.under_way and outward.under_way[0][0] <= time.monotonic():
                    events |= selectors.EVENT_WRITE
            self._register(inward.source, events, inward)

    def _register(self, sock: socket.socket, events: int, inward: Direction) -> None:
        known = self._selector.get_map().get(sock)
        if not events:
            if known:
                self._selector.unregister(sock)
        elif not known:
            self._selector.register(sock, events, lambda ready: self._ready(ready, inward))
        elif known.events != events:
            self._selector.modify(sock, events, known.data)

    def _ready(self, events: int, inward: Direction) -> None:
        # An order earlier in the same round may have wedged the network.
        if not events & selectors.EVENT_READ or self.troubles.wedged:
            return
        try:
            data = inward.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.cut = True
            return
        if not data:
            inward.ended = True
        elif inward is self.requests:
            self._spring(data)
            inward.under_way.append((time.monotonic() + self.troubles.delay, data))
        elif self._sprung:
            self.cut = self.cut or self._sprung.then_cut
            self._sprung.lost.set()
        elif not (inward.lost or self.troubles.deaf):
            inward.under_way.append((time.monotonic() + self.troubles.delay, data))

    def _spring(self, data: bytes) -> None:
        trap = self.troubles.trap
        if trap and trap.request in data:
            self.troubles.trap = None
            self._sprung = trap

    def flush(self) -> None:
        """Delivers what is due."""
        if self.troubles.wedged or self.cut:
            return
        for direction in self._directions:
            self._deliver(direction)
        self.arrange()

    def _deliver(self, direction: Direction) -> None:
        while direction.under_way and direction.under_way[0][0] <= time.monotonic():
            due, data = direction.under_way[0]
            try:
                sent = direction.sink.send(data)
            except BlockingIOError:
                return
            except OSError:
                self.cut = True
                return
            direction.under_way.popleft()
            if sent < len(data):
                direction.under_way.appendleft((due, data[sent:]))
        if direction.ended and not direction.under_way and not direction.passed_on:
            with contextlib.suppress(OSError):
                direction.sink.shutdown(socket.SHUT_WR)
            direction.passed_on = True

    def close(self) -> None:
        for sock in (self.client, self.server):
            if self._selector.get_map().get(sock):
                self._selector.unregister(sock)
            sock.close()
