"""What one server carries: the measured costs of claims, renewals and rows, and plain arithmetic from them."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.bench import Bench, name_of
from benchmarks.claims import DAY, pgbench_renewal, pgbench_slot
from benchmarks.rates import pgbench
from tests.support.pgbouncer import PgBouncer

#: As many clients as keep a small server busy without waiting for each other.
CLIENTS = 8
LEASES = 10_000
ROWS = 20_000
YEAR = 365 * 24 * 60
#: TTLs, and the longest pause between renewals that each gives by default.
TTLS = {10: 3.0, 60: 10.0, 600: 10.0}
#: Of all that a server can do, what locks may take.
SHARE = 0.5


@dataclass
class Costs:
    """What was measured."""

    connecting: float
    pooled: float | None
    connected: float
    renewing: float
    row: float
    run: float | None


def measure(bench: Bench) -> None:
    seconds = 1.0 if bench.quick else 4.0
    url = bench.database()
    slot = pgbench_slot(bench.folder)
    costs = Costs(
        connecting=pgbench(url, slot, CLIENTS, seconds, "-C"),
        pooled=_pooled(url, slot, seconds),
        connected=pgbench(url, slot, CLIENTS, seconds),
        renewing=_renewing(bench, seconds),
        row=_bytes_of_a_row(bench),
        run=_bytes_of_a_run(bench),
    )
    _measured(bench, costs)
    _computed(bench, costs)


def _measured(bench: Bench, costs: Costs) -> None:
    table = bench.table("capacity", "Measured: what each costs the server")
    case = "a second, client and server on the same processors"
    table.add(case, "claims of a slot, a connection each", "measured", "", costs.connecting)
    if costs.pooled is None:
        table.remark(case, "claims of a slot, through PgBouncer", "this machine has no pgbouncer")
    else:
        table.add(case, "claims of a slot, through PgBouncer", "measured", "", costs.pooled)
    table.add(case, "claims of a slot, connections kept", "measured", "", costs.connected)
    table.add(case, f"renewals, one statement each, {LEASES:,} leases", "measured", "", costs.renewing)
    table.add("bytes, with its index", "a row of the lock table", "measured", "", costs.row)
    if costs.run is not None:
        table.add("bytes, with its index", "a row of the journal", "measured", "", costs.run)


def _computed(bench: Bench, costs: Costs) -> None:
    table = bench.table("carries", "Computed: what one server carries")
    table.command = "benchmarks/run --only capacity"
    add = table.add
    hosts = "hosts at one tick, all served within a minute"
    add(hosts, "each connects", "at most", "", costs.connecting * 60 * SHARE)
    if costs.pooled is not None:
        add(hosts, "through PgBouncer in transaction mode", "at most", "", costs.pooled * 60 * SHARE)
    # A lease's claim and release are rare beside its renewals.
    for ttl, interval in TTLS.items():
        add("leases held at once", f"TTL {ttl} s, a renewal every {interval:.0f} s", "at most", "",
            costs.renewing * interval * SHARE)  # fmt: skip
    add("lock rows", "1,000 jobs with slot and lease, for good", "at most", "MB", 2000 * costs.row / 1e6)
    if costs.run is not None:
        runs = {"one a minute": YEAR, "1,000 jobs, hourly": 1000 * YEAR / 60}
        for what, count in runs.items():
            add(
                "journal, a year, nothing deleted",
                f"{what}: {count:,.0f} rows",
                "at most",
                "MB",
                count * costs.run / 1e6,
            )
    table.notes.append(
        f"{SHARE:.0%} of what was measured. The rest is for the work itself. hosts = claims a second times 60 times "
        f"{SHARE}; leases = renewals a second times interval times {SHARE}; size = rows times bytes."
    )


def _pooled(url: str, slot: Path, seconds: float) -> float | None:
    if shutil.which("pgbouncer") is None:
        return None
    with PgBouncer(url, "transaction", {"max_client_conn": 1000, "default_pool_size": CLIENTS}) as pooler:
        return pgbench(pooler.url(url), slot, CLIENTS, seconds, "-C")


def _renewing(bench: Bench, seconds: float) -> float:
    url = bench.database()
    ends = (time.time_ns() // 1000) + DAY
    with bench.admin(name_of(url)) as admin:
        admin.execute(
            "INSERT INTO key_value SELECT 'lease-' || n, 'bench:1', "
            "timestamptz 'epoch' + %s::float8 * interval '1 microsecond' FROM generate_series(1, %s) AS n",
            [ends, LEASES],
        )
        rate = pgbench(url, pgbench_renewal(bench.folder, LEASES, ends), CLIENTS, seconds)
        # Both ends are there, so rows were moved.
        row = admin.execute("SELECT count(DISTINCT expire_at) FROM key_value").fetchone()
        assert row == (2,), row
    return rate


def _bytes_of_a_row(bench: Bench) -> float:
    url = bench.database()
    with bench.admin(name_of(url)) as admin:
        admin.execute(
            "INSERT INTO key_value SELECT 'cronjob-lock:schedule:job-number-' || n, "
            "'host-' || n || '.example.com:4711', now() FROM generate_series(1, %s) AS n",
            [ROWS],
        )
        return _size(admin, "key_value") / ROWS


def _bytes_of_a_run(bench: Bench) -> float | None:
    """Of a journal as the product makes it; None where it has none."""
    program = str(bench.product / "dislock")
    url = bench.database()
    environment = bench.environment(url, LOCK_JOURNAL="journal")
    with bench.admin(name_of(url)) as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        made = subprocess.run([program, "--init", "DATABASE_URL"], env=environment, capture_output=True, check=False)
        ran = (
            made.returncode == 0
            and not subprocess.run(
                [program, "DATABASE_URL", "true"], env=environment, capture_output=True, check=False
            ).returncode
        )
        if not ran or not _count(admin, "journal"):
            return None
        columns = admin.execute(
            "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
            "WHERE table_name = 'journal' AND is_identity = 'NO'"
        ).fetchone()
        assert columns is not None
        # The row of that run, many times.
        names = str(columns[0])
        for _ in range(20):
            if _count(admin, "journal") >= ROWS:
                break
            admin.execute(f"INSERT INTO journal ({names}) SELECT {names} FROM journal".encode())
        return _size(admin, "journal") / _count(admin, "journal")


def _count(admin: psycopg.Connection[Any], table: str) -> int:
    row = admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _size(admin: psycopg.Connection[Any], table: str) -> float:
    row = admin.execute("SELECT pg_total_relation_size(%s)", [table]).fetchone()
    assert row is not None
    return float(row[0])
