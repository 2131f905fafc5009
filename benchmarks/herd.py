"""Many wrappers of one job at one instant, on a server with 100 connections."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.bench import PUBLISHED, Bench, program
from benchmarks.claims import shell_herd
from benchmarks.tables import Table

SIZES = (10, 100, 500)
PSQL = "`psql`, the same claim"
#: Waits for the word and becomes the wrapper.
WAITER = 'read _ <&"$0"; exec "$@" 2>/dev/null'
#: How long the last of them may take.
LAST = 600.0
#: How often the server is asked for its connections.
LOOK = 0.02


def measure(bench: Bench) -> None:
    table = bench.table("herd", "Many wrappers at one instant, `max_connections = 100`", "until the last", PUBLISHED)
    url = bench.database()
    for size in (10,) if bench.quick else SIZES:
        for number in range(bench.rounds(3) if size < 100 else 1):
            wrappers = list(bench.wrappers().items())
            for name, argv0 in wrappers[number % len(wrappers) :] + wrappers[: number % len(wrappers)]:
                # The zipapp is the same program; half a minute more would tell nothing new.
                if size < 100 or name != "zipapp":
                    # A quick run checks counts, however slow the machine is.
                    patience = {"LOCK_CONNECT_TIMEOUT_SECONDS": "60"} if bench.quick else {}
                    environment = bench.environment(url, **patience)
                    _add(bench, table, size, name, _starts(bench, [argv0, "DATABASE_URL"], environment, size))
            if not bench.quick:
                # With a claim of a key of its own in each round.
                wrapper = shell_herd(program("psql"), url)
                _add(bench, table, size, PSQL, _starts(bench, wrapper, bench.environment(url), size))
    table.notes.append(
        "`schedule`, all with one key and one tick, each around `true`. They share the processors of one machine. On "
        "separate hosts they would start faster, and more of them would connect at one moment. `not asked`: wrappers "
        "that did not end with 0, because the server could not be asked. Connections are counted every 20 ms."
    )


@dataclass
class Herd:
    seconds: float
    peak: int
    ran: int
    codes: Counter[int]


def _add(bench: Bench, table: Table, size: int, name: str, herd: Herd) -> None:
    case = f"{size} wrappers"
    failed = sum(count for code, count in herd.codes.items() if code)
    table.add(case, name, "until the last", "s", herd.seconds)
    table.add(case, name, "connections at peak", "", herd.peak)
    table.add(case, name, "runs", "", herd.ran)
    table.add(case, name, "not asked", "", failed)
    if name in (PUBLISHED, PSQL):
        return
    bench.exactly(f"{name}, {case}: runs", herd.ran, 1)
    bench.exactly(f"{name}, {case}: exit codes other than 0 and 1", failed - herd.codes[1], 0)
    bench.at_most(f"{name}, {case}: connections", herd.peak, min(size, 97))
    if size < 97:
        bench.exactly(f"{name}, {case}: wrappers that could not ask", failed, 0)


def _starts(bench: Bench, wrapper: list[str], environment: dict[str, str], size: int) -> Herd:
    return herd(bench, [*wrapper, "/bin/sh", "-c"], environment, size, ': > "$0/$$"')


def herd(bench: Bench, wrapper: list[str], environment: dict[str, str], size: int, script: str) -> Herd:
    """Starts many at one instant, and waits for the last. The script makes a file in the folder ``$0`` for its run."""
    runs = bench.folder / f"herd-{time.monotonic_ns()}"
    runs.mkdir()
    url = environment["DATABASE_URL"]
    command = [*wrapper, script, str(runs)]
    gate, word = os.pipe()
    waiting = [
        subprocess.Popen(["/bin/sh", "-c", WAITER, str(gate), *command], env=environment, pass_fds=[gate], cwd="/")
        for _ in range(size)
    ]
    os.close(gate)
    time.sleep(0.2)
    with bench.admin() as admin, _Watch(bench, admin, url) as watch:
        began = time.perf_counter()
        os.close(word)
        codes = Counter(process.wait(LAST) for process in waiting)
        seconds = time.perf_counter() - began
    return Herd(seconds, watch.peak, len(list(runs.iterdir())), codes)


class _Watch:
    """Counts the connections to a database until the block is left."""

    def __init__(self, bench: Bench, admin: psycopg.Connection[Any], url: str) -> None:
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(bench, admin, url))

    def _look(self, bench: Bench, admin: psycopg.Connection[Any], url: str) -> None:
        while not self._over.wait(LOOK):
            self.peak = max(self.peak, bench.connections(admin, url))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
