"""What a wrapper costs while its command does nothing for a minute."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import psycopg

from benchmarks.bench import PATIENCE, PUBLISHED, Bench
from benchmarks.overhead import STATEMENTS, STRATEGIES
from benchmarks.processes import State
from benchmarks.tables import Table
from tests.support.statements import Traffic

#: What a TTL of 60 s makes the pause between renewals.
INTERVAL = 10


def measure(bench: Bench) -> None:
    seconds = 1.0 if bench.quick else 60.0
    table = bench.table("idle", "While the command sleeps: a wrapper's own cost")
    # All at once, each with a database of its own.
    with ExitStack() as stack, bench.admin() as admin:
        began = time.monotonic()
        runs: list[_Run] = []
        for case, strategy in STRATEGIES.items():
            for name, argv0 in bench.wrappers().items():
                url = bench.database(logged=True)
                traffic = stack.enter_context(bench.watched(url))
                runs.append(_Run(case, name, url, started(argv0, bench.environment(url, strategy)), traffic))
        for run in runs:
            assert run.process.stdout is not None
            run.process.stdout.readline()
        time.sleep(seconds / 20)
        before = {run.pid: State.of(run.pid) for run in runs}
        time.sleep(seconds)
        for run in runs:
            _look(bench, table, admin, run, before[run.pid], seconds)
        for run in runs:
            run.process.communicate(timeout=PATIENCE)
            if run.process.returncode:
                sys.exit(f"{run.name}, {run.case}: exit code {run.process.returncode}")
        renewals = int((time.monotonic() - began) // INTERVAL) + 1
    # Complete once the watching is over.
    for run in runs:
        statements = len(run.traffic.statements)
        table.add(run.case, run.name, "statements in all", "", statements)
        if run.name == PUBLISHED:
            continue
        most = STATEMENTS[run.case] + (renewals if "lease" in STRATEGIES[run.case] else 0)
        bench.at_most(f"{run.name}, {run.case}: statements", statements, most)
    table.notes.append(
        f"One run each, all at the same time. Each takes {seconds:.0f} s, and the time to start and to end. The TTL is "
        f"60 s, so there is a renewal every {INTERVAL} s. With `schedule` alone the wrapper has become the command and "
        "costs nothing."
    )


def started(argv0: str, environment: Mapping[str, str], *, quiet: bool = False) -> subprocess.Popen[bytes]:
    """A wrapper whose command has begun once it has written a line, and ends when its standard input is closed."""
    command = ["/bin/sh", "-c", "echo started; exec cat"]
    return subprocess.Popen(
        [argv0, "DATABASE_URL", *command],
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
    )


def _look(bench: Bench, table: Table, admin: psycopg.Connection[Any], run: _Run, before: State, seconds: float) -> None:
    held = bench.connections(admin, run.url)
    table.add(run.case, run.name, "connections", "", held)
    own = run.case != "schedule"
    ours = run.name != PUBLISHED
    if ours:
        bench.exactly(f"{run.name}, {run.case}: connections", held, int(own))
    if not own:
        return
    after = State.of(run.pid)
    table.add(run.case, run.name, "memory (PSS)", "MB", after.private)
    table.add(run.case, run.name, "memory (RSS)", "MB", after.resident)
    table.add(run.case, run.name, "processor a minute", "ms", (after.processor - before.processor) * 60_000 / seconds)
    table.add(run.case, run.name, "wake-ups a minute", "", (after.wakeups - before.wakeups) * 60 / seconds)
    table.add(run.case, run.name, "threads", "", after.threads)
    if ours:
        bench.at_most(f"{run.name}, {run.case}: threads", after.threads, 5)


class _Run:
    def __init__(self, case: str, name: str, url: str, process: subprocess.Popen[bytes], traffic: Traffic) -> None:
        self.case, self.name, self.url, self.process, self.traffic = case, name, url, process, traffic
        self.pid = process.pid
