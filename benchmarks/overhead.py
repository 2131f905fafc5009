"""What a wrapper adds to a command that does nothing: `true` under each strategy, warm and cold."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.bench import PUBLISHED, Bench, Used, program, run
from benchmarks.claims import shell_lease, shell_slot
from benchmarks.tables import Table

STRATEGIES = {"schedule": "schedule", "lease": "lease", "both": "schedule,lease"}
#: Statements that a run sends; the documents promise them.
STATEMENTS = {"schedule": 2, "lease": 2, "both": 4}

COLD = "schedule, first run"
Runs = dict[str, Callable[[], Used]]


def measure(bench: Bench) -> None:
    table = bench.table("overhead", "A wrapped `true`", "elapsed", PUBLISHED)
    url = bench.database(logged=bench.quick)
    cases = {**{f"{name}, warm": _runs(bench, url, STRATEGIES[name]) for name in STRATEGIES}}
    cases["schedule, warm"] |= {
        "`flock`": partial(run, ["flock", f"{bench.folder}/lock", "true"], bench.environment(url)),
        "`psql`, the same claim": lambda: run(shell_slot(program("psql"), url), bench.environment(url)),
    }
    cases["lease, warm"]["`psql`, the same claim and release"] = lambda: run(
        shell_lease(program("psql"), url), bench.environment(url)
    )
    for name in ("schedule", "lease"):
        cases[f"skipped ({name}), warm"] = _skipped(bench, url, STRATEGIES[name])
    python = str(bench.product / "python")
    cases["limits"] = {
        "`python -c pass`": partial(run, [python, "-I", "-c", "pass"], bench.environment(url)),
        "`import psycopg`": partial(run, [python, "-I", "-c", "import psycopg"], bench.environment(url)),
    }
    cold = _cold(bench, url)
    for case, runs in {**cases, COLD: cold}.items():
        for name in runs:
            table.row(case, name)
    rounds = bench.rounds(15)
    for number in range(rounds + (not bench.quick)):
        for case, runs in cases.items():
            # The first round writes bytecode, fills caches and is thrown away. Each other begins elsewhere.
            _round(table if number or bench.quick else None, case, runs, number)
    for number in range(bench.rounds(5)):
        _round(table, COLD, cold, number)
    if bench.quick:
        _count(bench, url)


def _round(table: Table | None, case: str, runs: Runs, number: int) -> None:
    names = list(runs)
    cut = number % len(names)
    for name in names[cut:] + names[:cut]:
        used = runs[name]()
        if used.code:
            sys.exit(f"{name}, {case}: exit code {used.code}")
        if table is not None:
            table.add(case, name, "elapsed", "ms", used.seconds * 1000)
            table.add(case, name, "processor", "ms", used.processor * 1000)


def _runs(bench: Bench, url: str, strategy: str) -> Runs:
    return {name: _wrapped(bench, argv0, url, strategy) for name, argv0 in bench.wrappers().items()}


def _wrapped(bench: Bench, argv0: str, url: str, strategy: str, **more: str) -> Callable[[], Used]:
    # The environment is made anew each time: each run finds its lock free.
    return lambda: run([argv0, "DATABASE_URL", "true"], bench.environment(url, strategy, **more))


def _skipped(bench: Bench, url: str, strategy: str) -> Runs:
    """Somebody else has the lock, until long after the measurement."""
    key = f"skipped-{strategy}"
    row = f"cronjob-lock:{strategy}:{key}"
    with bench.admin(url.rpartition("/")[2]) as admin:
        admin.execute("INSERT INTO key_value VALUES (%s, 'other:1', now() + interval '20 hours')", [row])
    return {
        name: _wrapped(bench, argv0, url, strategy, LOCK_KEY=key, RUN_LOCK_TTL_SECONDS="86400")
        for name, argv0 in bench.wrappers().items()
    }


def _cold(bench: Bench, url: str) -> Runs:
    """As on a host's first start: nothing unpacked, no bytecode of what was installed."""
    found: Runs = {}
    for name, argv0 in bench.wrappers().items():
        start = _wrapped(bench, argv0, url, "schedule")
        if name == "zipapp":
            found[name] = partial(_without, start, lambda: shutil.rmtree(bench.folder / "cache", ignore_errors=True))
        elif not bench.quick:
            found[name] = partial(_without, start, partial(_forget_bytecode, Path(argv0).parents[1]))
    return found


def _without(start: Callable[[], Used], forget: Callable[[], None]) -> Used:
    forget()
    return start()


def _forget_bytecode(environment: Path) -> None:
    for folder in environment.rglob("__pycache__"):
        shutil.rmtree(folder)


def _count(bench: Bench, url: str) -> None:
    """What one run costs the server."""
    for name, strategy in STRATEGIES.items():
        for wrapper, argv0 in bench.wrappers().items():
            with bench.watched(url) as traffic:
                environment: Mapping[str, str] = bench.environment(url, strategy)
                used = run([argv0, "DATABASE_URL", "true"], environment)
            what = f"{wrapper}, {name}"
            bench.exactly(f"{what}: exit code", used.code, 0)
            bench.at_most(f"{what}: statements", len(traffic.statements), STATEMENTS[name])
            bench.at_most(f"{what}: connections", traffic.connections, 2)
