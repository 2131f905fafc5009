"""A TCP proxy on 127.0.0.1 in front of a server, which can do what networks do to connections."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.proxy_link import Link, Trap, Troubles

T = TypeVar("T")
#: close() then sends RST and not FIN.
ABORT = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections to ``host``:``port``; a context manager. Everything is done by one thread of its own.

    A method has taken effect when it returns. ``resume`` ends every trouble except what was cut or lost already.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        self._selector.register(self._waking, selectors.EVENT_READ, self._drain)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._links: set[Link] = set()
        self._troubles = Troubles()
        self._accepted = 0
        self._stopping = False
        self.port = 0
        self._listener = self._bind()
        self._listen()
        self._thread = threading.Thread(target=self._work, name=f"proxy-{self.port}", daemon=True)

    @classmethod
    def before(cls, url: str) -> Proxy:
        """A proxy in front of the server that a connection string names."""
        words = conninfo_to_dict(url)
        return cls(str(words.get("host") or "127.0.0.1"), int(words.get("port") or 5432))

    def url(self, url: str) -> str:
        """The connection string with the proxy in place of its server."""
        return make_conninfo(url, host="127.0.0.1", port=self.port)

    # What it can tell.

    @property
    def accepted(self) -> int:
        """How many connections were ever accepted."""
        return self._accepted

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return self._do(lambda: len(self._links))

    # What it can do.

    def resume(self) -> None:
        """Lets everything flow again, also what was held back, and accepts connections again."""

        def work() -> None:
            self._troubles = Troubles()
            for link in self._links:
                link.troubles = self._troubles
                link.arrange()
            if self._refusing:
                self._listen()

        self._do(work)

    def delay(self, seconds: float) -> None:
        """Holds every byte, in both directions, back for so long."""
        self._trouble(lambda troubles: setattr(troubles, "delay", seconds))

    def wedge(self) -> None:
        """Connections stay open and are still accepted, and no byte moves: a network that drops packets."""
        self._trouble(lambda troubles: setattr(troubles, "wedged", True))

    def swallow_answers(self) -> None:
        """What clients send arrives, what the server says is lost for good."""
        self._trouble(lambda troubles: setattr(troubles, "deaf", True))

    def lose_answer(self, to: bytes, *, then_cut: bool) -> threading.Event:
        """The next time a client sends ``to``, the server gets it and its answer is lost.

        The connection is then cut, or stays open and silent. The event is set when the server has answered, so what it
        was told is done by then. Other connections go on undisturbed.
        """
        lost = threading.Event()
        self._trouble(lambda troubles: setattr(troubles, "trap", Trap(to, then_cut, lost)))
        return lost

    def cut(self) -> None:
        """Resets (RST) every open connection on both sides; new ones are welcome."""

        def work() -> None:
            for link in list(self._links):
                self._abort(link)

        self._do(work)

    def half_close(self) -> None:
        """Tells clients that the server will say no more (FIN), and goes on taking what they send."""

        def work() -> None:
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.client.shutdown(socket.SHUT_WR)
                link.answers.lost = True

        self._do(work)

    def lead_to(self, port: int) -> None:
        """New connections go to another server on that port; open ones stay where they are."""
        self._do(lambda: setattr(self, "_upstream", (self._upstream[0], port)))

    def refuse(self) -> None:
        """New connections are refused, as by a port where nothing listens; open ones go on."""

        def work() -> None:
            if not self._refusing:
                # Bound and not listening: refused. It is bound before the other is closed, or a connection of somebody
                # else's could get the port as its own end in between.
                refusing = self._bind()
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = refusing

        self._do(work)

    # The thread.

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(lambda: setattr(self, "_stopping", True))
        self._thread.join(timeout=10)
        for link in list(self._links):
            self._abort(link)
        for sock in (self._listener, self._wake_up, self._waking):
            sock.close()
        self._selector.close()

    def _do(self, work: Callable[[], T]) -> T:
        """Has the thread do it between two of its own steps, and waits until it is done."""
        if not self._thread.is_alive():
            return work()
        done: Future[T] = Future()

        def order() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the caller, who waits, is to see it
                done.set_exception(error)

        self._orders.put(order)
        self._wake_up.send(b"x")
        return done.result(timeout=10)

    def _trouble(self, change: Callable[[Troubles], None]) -> None:
        def work() -> None:
            change(self._troubles)
            for link in self._links:
                link.arrange()

        self._do(work)

    def _work(self) -> None:
        while not self._stopping:
            due = min((link.due for link in self._links), default=None)
            timeout = None if due is None or due == float("inf") else max(0.0, due - time.monotonic())
            for key, events in self._selector.select(timeout):
                key.data(events)
            for link in list(self._links):
                link.flush()
                if link.cut:
                    self._abort(link)
                elif link.over:
                    self._forget(link)

    def _drain(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._waking.recv(4096)
        while not self._orders.empty():
            self._orders.get()()

    @property
    def _refusing(self) -> bool:
        return self._listener.fileno() not in self._selector.get_map()

    def _bind(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.setblocking(False)
        self.port = int(listener.getsockname()[1])
        return listener

    def _listen(self) -> None:
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self._accepted += 1
        try:
            server = socket.create_connection(self._upstream, timeout=5)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            client.close()
            return
        self._links.add(Link(client, server, self._selector, self._troubles))

    def _abort(self, link: Link) -> None:
        for sock in (link.client, link.server):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self._forget(link)

    def _forget(self, link: Link) -> None:
        link.close()
        self._links.discard(link)
