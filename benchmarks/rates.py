"""How often a library takes a lock and gives it back: one after another, and many at once."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.bench import PUBLISHED, Bench, program
from benchmarks.claims import pgbench_lease
from benchmarks.worker import Worker
from tests.support.programs import identity

AT_ONCE = 8


def measure(bench: Bench) -> None:
    table = bench.table("rates", "Acquire and release in a library", "a second", PUBLISHED)
    seconds = 0.2 if bench.quick else 0.8
    for parallel in (1, AT_ONCE):
        case = f"{parallel} at once"
        with ExitStack() as stack:
            slices = _libraries(bench, stack, parallel) | _ceilings(bench, parallel)
            for number in range(bench.rounds(4)):
                names = list(slices)
                cut = number % len(names)
                for name in names[cut:] + names[:cut]:
                    rate, processor = slices[name](seconds)
                    table.add(case, name, "a second", "", rate)
                    if processor is not None:
                        table.add(case, name, "processor each", "ms", processor * 1000)
    if bench.quick:
        _count(bench)
    if not bench.quick and "python-redis-lock 4.0.1" not in {row.contender for row in table.rows}:
        table.notes.append("No python-redis-lock: this machine has no redis-server.")
    table.notes.append(
        "Each lock has its own key, so nobody waits. dislock, its peer and `pgbench -C` open a connection for each "
        "lock. pals, sqlalchemy-dlock, python-redis-lock and plain `pgbench` keep theirs. "
        "Advisory locks write nothing. The server does not wait for its disk (`fsync = off`)."
    )


Slice = Callable[[float], tuple[float, float | None]]


def _libraries(bench: Bench, stack: ExitStack, parallel: int) -> dict[str, Slice]:
    url = bench.database()
    redis = stack.enter_context(bench.redis())
    ours, published = bench.product / "python", bench.peer("published")
    found = {"dislock": (ours, "dislock", "sync", url), "dislock.aio": (ours, "dislock", "async", url)}
    if published:
        found[PUBLISHED] = (published / "python", "dislock", "sync", url)
        found[f"{PUBLISHED}, aio"] = (published / "python", "dislock", "async", url)
    if libraries := bench.peer("libraries"):
        python = libraries / "python"
        found["pals 0.4.0"] = (python, "pals", "sync", url)
        found["sqlalchemy-dlock 0.9.0"] = (python, "sqlalchemy-dlock", "sync", url)
        if redis:
            found["python-redis-lock 4.0.1"] = (python, "redis-lock", "sync", redis)
    slices: dict[str, Slice] = {}
    for name, (python, library, kind, where) in found.items():
        worker = stack.enter_context(Worker(python, "rates", library, kind, str(parallel), where))
        worker.hear()
        slices[name] = partial(_slice, worker)
    return slices


def _slice(worker: Worker, seconds: float) -> tuple[float, float]:
    done = worker.ask(str(seconds))
    return done["count"] / done["seconds"], done["processor"] / max(1, done["count"])


def _ceilings(bench: Bench, parallel: int) -> dict[str, Slice]:
    """The very same statements, sent by a program that does nothing else."""
    url = bench.database()
    script = pgbench_lease(bench.folder)
    return {
        "`pgbench -C`": lambda seconds: (pgbench(url, script, parallel, seconds, "-C"), None),
        "`pgbench`": lambda seconds: (pgbench(url, script, parallel, seconds), None),
    }


def pgbench(url: str, script: Path, parallel: int, seconds: float, *options: str) -> float:
    """Transactions a second."""
    script.chmod(0o644)
    # It measures whole seconds.
    whole = str(max(1, round(seconds)))
    jobs = str(min(parallel, os.cpu_count() or 1))
    command = [program("pgbench"), "-n", "-T", whole, "-c", str(parallel), "-j", jobs, *options, "-f", str(script), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **identity())
    found = re.search(r"(?m)^tps = ([\d.]+)", done.stdout)
    if done.returncode or not found or "number of failed transactions: 0 " not in done.stdout:
        raise RuntimeError(f"pgbench: {done.stdout}{done.stderr}")
    return float(found[1])


def _count(bench: Bench) -> None:
    """What one lease costs the server: a claim, a release, and the connections for them."""
    url = bench.database(logged=True)
    for kind in ("sync", "async"):
        with bench.watched(url) as traffic, Worker(bench.product / "python", "rates", "dislock", kind, "1", url) as one:
            one.hear()
            done = one.ask("0.2")["count"]
        statements = len(traffic.statements)
        # The warm-up took some too. A claim may be preceded by a look.
        taken = sum("INSERT" in text for text in traffic.statements)
        bench.at_most(f"{kind}: statements for {taken} leases", statements, 3 * taken)
        bench.at_most(f"{kind}: leases counted", done, taken)
        bench.at_most(f"{kind}: connections for {taken} leases", traffic.connections, 2 * taken)
