"""How soon the next one has the lock: after a holder's SIGKILL, after a clean end, and across a failover."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.bench import PATIENCE, PUBLISHED, Bench
from benchmarks.idle import started
from benchmarks.tables import Table
from benchmarks.worker import Worker
from tests.support.replicas import Pair

TTL = 5.0
WAITERS = 10
#: For the failover: a TTL that a promotion fits into.
FAILOVER_TTL = 20
Contender = tuple[Path, str, str]


def measure(bench: Bench) -> None:
    table = bench.table("takeover", "Until the next one has the lock")
    with bench.redis() as redis:
        found = _contenders(bench, bench.database(), redis)
        _killed(bench, table, found)
        for name, contender in found.items():
            _clean(bench, table, name, contender)
    if not bench.quick:
        _failover(bench, table)
    table.notes.append(
        f"*Killed*: the TTL is {TTL:.0f} s, and there is one waiter. A lease expires, so the next one waits for the "
        "rest. An advisory lock ends with its connection, which is cut at once here. *Clean end*: "
        f"{WAITERS} waiters in one process. Each frees the lock as soon as it has it. Where a library cannot wait, it "
        "tries again after 50 ms. *Failover*: the standby is asynchronous. The primary is stopped, and the standby is "
        f"promoted at once. The TTL is {FAILOVER_TTL} s."
    )


def _contenders(bench: Bench, url: str, redis: str | None) -> dict[str, Contender]:
    found = {"dislock": (bench.product / "python", "dislock", url)}
    if published := bench.peer("published"):
        found[PUBLISHED] = (published / "python", "dislock", url)
    if libraries := bench.peer("libraries"):
        python = libraries / "python"
        found["pals 0.4.0"] = (python, "pals", url)
        found["sqlalchemy-dlock 0.9.0"] = (python, "sqlalchemy-dlock", url)
        if redis:
            found["python-redis-lock 4.0.1"] = (python, "redis-lock", redis)
    return found


def _killed(bench: Bench, table: Table, found: dict[str, Contender]) -> None:
    # They only wait, so all of them do it at once.
    with ExitStack() as stack:
        pairs: list[tuple[str, Worker, Worker]] = []
        for name, contender in found.items():
            for number in range(bench.rounds(3)):
                lock = f"killed-{name}-{number}"
                holder = stack.enter_context(_worker(contender, "hold", lock))
                holder.hear()
                pairs.append((name, holder, stack.enter_context(_worker(contender, "wait", lock, 1))))
        for _, _, waiter in pairs:
            waiter.hear()
        killed = []
        for _, holder, _ in pairs:
            killed.append(time.monotonic())
            holder.kill()
        for (name, _, waiter), moment in zip(pairs, killed, strict=True):
            taken = waiter.hear()
            if name == "dislock":
                bench.exactly(f"{name}, killed: taken over", len(taken), 1)
            table.add("after SIGKILL", name, "the next", "ms", *((at - moment) * 1000 for at in taken))


def _clean(bench: Bench, table: Table, name: str, contender: Contender) -> None:
    count = 3 if bench.quick else WAITERS
    for number in range(bench.rounds(2)):
        lock = f"clean-{name}-{number}"
        with _worker(contender, "hold", lock) as holder:
            holder.hear()
            with _worker(contender, "wait", lock, count) as waiting:
                waiting.hear()
                released = holder.ask()
                taken = waiting.hear()
        table.add("after a clean end", name, "the next", "ms", (taken[0] - released) * 1000)
        table.add("after a clean end", name, "all of them", "ms", (taken[-1] - released) * 1000)
        if name == "dislock":
            bench.exactly(f"{name}, clean end: served", len(taken), count)


def _worker(contender: Contender, what: str, lock: str, waiters: int = 0) -> Worker:
    python, library, url = contender
    return Worker(python, "takeover", what, library, url, lock, str(TTL), str(waiters))


def _failover(bench: Bench, table: Table) -> None:
    with Pair() as pair:
        with psycopg.connect(pair.primary.url(), autocommit=True) as admin:
            admin.execute("CREATE TABLE key_value (key text PRIMARY KEY, value text, expire_at timestamptz NOT NULL)")
        runs: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        for name, argv0 in bench.wrappers().items():
            environment = bench.environment(pair.url(), "lease", RUN_LOCK_TTL_SECONDS=str(FAILOVER_TTL))
            runs[name] = f"cronjob-lock:lease:{environment['LOCK_KEY']}", started(argv0, environment, quiet=True)
        for _, process in runs.values():
            assert process.stdout is not None
            process.stdout.readline()
        pair.catch_up()
        died = time.monotonic()
        pair.primary.stop()
        pair.standby.promote()
        with psycopg.connect(pair.standby.url(), autocommit=True) as admin:
            renewed = _renewals(admin, {name: key for name, (key, _) in runs.items()}, died)
        for name, (_, process) in runs.items():
            survived = process.poll() is None
            process.communicate(timeout=PATIENCE)
            case = "across a failover"
            if name in renewed:
                table.add(case, name, "the next", "ms", renewed[name] * 1000)
            outcome = "its next renewal on the new primary; " if name in renewed else "no renewal on the new primary; "
            ended = "went on" if survived else "was ended"
            table.remark(case, name, f"{outcome}the run {ended}, exit code {process.returncode}")


def _renewals(admin: psycopg.Connection[Any], keys: dict[str, str], died: float) -> dict[str, float]:
    """Seconds until each lease was renewed; those that never were are missing."""
    query = "SELECT key, expire_at FROM key_value"
    before = dict(admin.execute(query).fetchall())
    renewed: dict[str, float] = {}
    while len(renewed) < len(keys) and time.monotonic() < died + FAILOVER_TTL:
        now = dict(admin.execute(query).fetchall())
        for name, key in keys.items():
            if name not in renewed and now.get(key, before.get(key)) > before[key]:
                renewed[name] = time.monotonic() - died
        time.sleep(0.02)
    return renewed
