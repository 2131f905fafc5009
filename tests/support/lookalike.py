"""A server that speaks as much of PostgreSQL's protocol as a connection's start, and says of itself what it is told."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from types import TracebackType


class Lookalike:
    """Lets everybody in and answers nothing more; ``asked`` is what it was sent after that, goodbyes left out."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked = b""
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://app@127.0.0.1:{port}/app?sslmode=disable&gssencmode=disable"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError, EOFError):
                    self._welcome(client)
                    while chunk := client.recv(65536):
                        if not chunk.startswith(b"X"):
                            self.asked += chunk
                            return

    def _welcome(self, client: socket.socket) -> None:
        (length,) = struct.unpack("!I", client.recv(4))
        client.recv(length - 4)
        said = {"client_encoding": "UTF8", **self._parameters}
        client.sendall(
            _message("R", struct.pack("!I", 0))
            + b"".join(_message("S", f"{name}\0{value}\0".encode()) for name, value in said.items())
            + _message("K", struct.pack("!II", 1, 2))
            + _message("Z", b"I")
        )

    def __enter__(self) -> Lookalike:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            # A thread that waits in accept() is not woken by close().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _message(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack("!I", len(body) + 4) + body
