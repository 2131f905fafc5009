"""Many wrappers that wait for one lease: whether all are served, and what waiting costs the server."""

from __future__ import annotations

import time

import psycopg

from benchmarks.bench import Bench, name_of
from benchmarks.herd import herd

WAITERS, TTL, JOB = 30, 5, 0.2


def measure(bench: Bench) -> None:
    table = bench.table("waiting", "Many wrappers that wait for one lease")
    url = bench.database()
    waiters = 5 if bench.quick else WAITERS
    for _ in range(bench.rounds(3)):
        wrapper = [str(bench.product / "dislock"), "--wait=600", f"--ttl={TTL}", "DATABASE_URL", "sh", "-c"]
        environment = bench.environment(url, "lease")
        with bench.admin() as admin:
            before = _statements(admin, url)
            found = herd(bench, wrapper, environment, waiters, f': > "$0/$$"; sleep {JOB}')
            # A server process reports its figures when its connection ends.
            time.sleep(0.5)
            statements = _statements(admin, url) - before
        case, served = f"{waiters} wrappers, a job of {JOB} s", found.ran
        table.add(case, "dislock", "until the last", "s", found.seconds)
        table.add(case, "dislock", "connections at peak", "", found.peak)
        table.add(case, "dislock", "statements", "/s", statements / found.seconds)
        table.add(case, "dislock", "runs", "", served)
        bench.exactly(f"{case}: runs", served, waiters)
        bench.exactly(f"{case}: exit codes other than 0", sum(found.codes.values()) - found.codes[0], 0)
        bench.at_most(f"{case}: connections", found.peak, waiters)
    table.notes.append(
        f"`lease` with `--wait=600 --ttl={TTL}`, all started at one instant on one machine. Each wrapper has one "
        "connection. Nearly all statements are reads of one row. Connections are counted every 20 ms."
    )


def _statements(admin: psycopg.Connection[tuple[int]], url: str) -> int:
    """How many transactions the database has carried out: each of our statements is one."""
    row = admin.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [name_of(url)]
    ).fetchone()
    assert row is not None
    return int(row[0])
