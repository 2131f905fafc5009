"""Measures pg_advisory_lock on each driver, beside a bare statement on the same connection, and prints one table.

    .venv/bin/python -m benchmarks.advisory [--rounds N] [--foreign N]

Each cell is the median of the rounds in microseconds, the ratio to the bare statement, and the round trips of one call
on the wire once it has been made before (in brackets those of the first call on a connection). What is compared is
taken turn by turn, so that a busy machine slows all of it alike. The server is a throw-away one, on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from sqlalchemy import text

from pg_advisory_lock import PgAdvisoryLockNotAcquired
from tests.integration.advisory.actors import DRIVERS, Actor
from tests.support.postgres import Postgres

BARE = text("SELECT 1")


class Wire:
    """Hands one connection on to the server and counts the turns: how often the client speaks after the server."""

    def __init__(self, port: int) -> None:
        self.turns = 0
        self._server_port = port
        self._speaks = "server"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, target, name in ((client, server, "client"), (server, client, "server")):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(source, target, name), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if name == "client" and self._speaks == "server":
                    self.turns += 1
                self._speaks = name
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def cases(actor: Actor, holder: Actor) -> dict[str, Callable[[], object]]:
    """What is measured, by name. The holder has the lock ``taken``; the actor begins and ends its own transactions."""

    def held() -> None:
        with actor.held("free"):
            pass

    def refused(take: Callable[..., object], **options: Any) -> None:
        with contextlib.suppress(PgAdvisoryLockNotAcquired):
            take("taken", **options)

    holder.lock("taken")
    return {
        "bare statement": lambda: actor.do(actor.handle.execute(BARE)).one(),
        "lock(), free": lambda: actor.lock("free"),
        "lock_immediate(), free": lambda: actor.lock_immediate("free"),
        "held(), free": held,
        "lock_immediate(), False": lambda: actor.lock_immediate("taken", raise_on_failure=False),
        "lock_immediate(), raised": lambda: refused(actor.lock_immediate),
        "lock(1 ms), False": lambda: actor.lock("taken", timeout_in_ms=1, raise_on_failure=False),
        "lock(1 ms), raised": lambda: refused(actor.lock, timeout_in_ms=1),
        "held(1 ms), raised": lambda: refused(lambda *args, **kw: actor.held(*args, **kw).__enter__(), timeout_in_ms=1),
    }


def times(actor: Actor, what: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in what}
    for number in range(rounds + 5):
        for name, call in what.items():
            # The first statement of a transaction brings BEGIN along, which is not ours.
            actor.sql("SELECT 1")
            began = time.perf_counter()
            call()
            if number >= 5:
                taken[name].append(time.perf_counter() - began)
            actor.rollback()
    return {name: statistics.median(values) * 1e6 for name, values in taken.items()}


def turns(url: str, driver: str, holder: Actor) -> dict[str, tuple[int, int]]:
    """The round trips of each case: of the first call on its connection, and of one after many."""
    found = {}
    for name in cases(holder, holder):
        wire = Wire(int(psycopg.conninfo.conninfo_to_dict(url)["port"]))
        actor = Actor(psycopg.conninfo.make_conninfo(url, port=wire.port), f"{driver}-connection")
        call = cases(actor, holder)[name]
        counts = []
        for _ in range(8):
            actor.sql("SELECT 1")
            before = wire.turns
            call()
            counts.append(wire.turns - before)
            actor.rollback()
        found[name] = (counts[0], counts[-1])
        actor.close()
    return found


@contextlib.contextmanager
def foreign_locks(url: str, number: int) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute("SELECT count(pg_advisory_xact_lock(7, g)) FROM generate_series(1, %s) g", [number])
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--foreign", type=int, default=0, help="so many locks of another transaction on the server")
    given = parser.parse_args()
    settings = {"max_locks_per_transaction": 64 + given.foreign // 50}
    with Postgres(settings) as server, foreign_locks(server.url(), given.foreign):
        rows: dict[str, list[str]] = {}
        for driver in DRIVERS:
            holder = Actor(server.url(), "psycopg-connection")
            wire = turns(server.url(), driver, holder)
            actor = Actor(server.url(), f"{driver}-connection")
            took = times(actor, cases(actor, holder), given.rounds)
            for name, micros in took.items():
                first, later = wire[name]
                trips = f"{later}" if first == later else f"{later} [{first}]"
                ratio = micros / took["bare statement"]
                rows.setdefault(name, []).append(f"{micros:.0f} µs · {ratio:.1f} · {trips}")
            actor.close()
            holder.close()
    print(f"| {given.foreign} foreign locks | " + " | ".join(DRIVERS) + " |")
    print("|---" * (len(DRIVERS) + 1) + "|")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
