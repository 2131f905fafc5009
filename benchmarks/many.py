"""Many leases in one process: threads, connections, statements, memory, and how late they are renewed."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import PUBLISHED, Bench, name_of
from benchmarks.processes import State
from benchmarks.tables import Table, percentile
from benchmarks.worker import Worker

SIZES = (1, 10, 100, 1000, 5000)
TTL = 10.0
INTERVAL = 3.0
#: How long they are watched, and how long before: a lease is renewed with others from its second renewal on.
SPAN, SETTLE = 7.0, 2 * INTERVAL

#: Each renewal leaves the time since the one before, by the server's clock. Claims and releases leave none.
TRIGGER = """
CREATE UNLOGGED TABLE moves (key text, at timestamptz);
GRANT ALL ON moves TO PUBLIC;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves VALUES (new.key, clock_timestamp());
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE ON key_value FOR EACH ROW EXECUTE FUNCTION note();
"""
GAPS = """
SELECT extract(epoch FROM gap) FROM (
    SELECT at - lag(at) OVER (PARTITION BY key ORDER BY at) AS gap FROM moves
) AS all_of_them WHERE gap IS NOT NULL
"""


@dataclass(frozen=True)
class Contender:
    name: str
    python: Path
    library: str
    kind: str
    sizes: tuple[int, ...]


def measure(bench: Bench) -> None:
    table = bench.table("many", "Many leases in one process")
    with bench.redis() as redis:
        for size in (1, 10) if bench.quick else SIZES:
            for contender in _contenders(bench, redis):
                if size in contender.sizes:
                    _measure(bench, table, contender, size, redis)
    table.notes.append(
        f"The TTL is {TTL:.0f} s, with a renewal every {INTERVAL:.0f} s or earlier. They are watched for {SPAN:.0f} s, "
        f"from {SETTLE:.0f} s after all are held. *Late*: by how much the pause between two renewals of a lease was "
        f"longer than {INTERVAL:.0f} s, by the server's clock, at the 99th percentile. The thread that holds them "
        "is not counted. python-redis-lock: `auto_renewal=True`, and connections as Redis counts them."
    )


def _contenders(bench: Bench, redis: str | None) -> list[Contender]:
    ours = bench.product / "python"
    found = [
        Contender("dislock", ours, "dislock", "sync", SIZES),
        Contender("dislock.aio", ours, "dislock", "async", SIZES),
    ]
    if published := bench.peer("published"):
        found.append(Contender(PUBLISHED, published / "python", "dislock", "sync", SIZES[:3]))
    if redis and (libraries := bench.peer("libraries")):
        found.append(Contender("python-redis-lock 4.0.1", libraries / "python", "redis-lock", "sync", SIZES[:4]))
    return found


def _measure(bench: Bench, table: Table, contender: Contender, size: int, redis: str | None) -> None:
    case, name = f"{size:,}", contender.name
    foreign = contender.library == "redis-lock"
    url = redis if foreign and redis else bench.database(logged=True)
    span, settle = (1.0, 0.0) if bench.quick else (SPAN, SETTLE)
    arguments = [contender.library, contender.kind, str(size), str(TTL), str(INTERVAL), url]
    with bench.admin(name_of(url) if not foreign else "postgres") as admin:
        if not foreign:
            admin.execute(TRIGGER)
        with Worker(contender.python, "many", *arguments) as worker:
            got = worker.hear()
            time.sleep(settle)
            with bench.watched(url) as traffic:
                if not foreign:
                    admin.execute("TRUNCATE moves")
                before, began = State.of(worker.pid), time.monotonic()
                time.sleep(span)
                after, took = State.of(worker.pid), time.monotonic() - began
            table.add(case, name, "held", "", got["held"])
            if got["reason"]:
                table.remark(case, name, f"no more than {got['held']} of {case}: {_short(got['reason'])}")
            table.add(case, name, "to take them", "s", got["seconds"])
            table.add(case, name, "threads", "", after.threads - 1)
            if foreign:
                table.add(case, name, "connections", "", _clients(url))
            else:
                held = bench.connections(admin, url)
                table.add(case, name, "connections", "", held)
                # The administrator's own ones are in the same log.
                own = sum("moves" in text or "pg_stat_activity" in text for text in traffic.statements)
                table.add(case, name, "statements a second", "", (len(traffic.statements) - own) / took)
            table.add(case, name, "memory", "MB", after.resident)
            table.add(case, name, "of a core", "%", (after.processor - before.processor) * 100 / took)
            if not foreign:
                gaps = [float(row[0]) for row in admin.execute(GAPS).fetchall()]
                late = [max(0.0, gap - INTERVAL) for gap in gaps]
                if late:
                    table.add(case, name, "late", "ms", percentile(late, 0.99) * 1000)
            if name != PUBLISHED and not foreign and size <= 10:
                _count(bench, f"{name}, {size} leases", got, after, held, size)


def _count(bench: Bench, what: str, got: dict[str, Any], after: State, held: int, size: int) -> None:
    bench.exactly(f"{what}: held", got["held"], size)
    bench.at_most(f"{what}: connections", held, max(2, size))
    bench.at_most(f"{what}: threads", after.threads - 1, max(4, 2 * size))


def _clients(url: str) -> int:
    command = ["redis-cli", "-u", url, "client", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    # The one that asks is among them.
    return sum(bool(line) for line in listed) - 1


def _short(reason: str) -> str:
    kind, _, text = reason.replace("|", "/").partition(": ")
    # The server's own words, without the driver's.
    words = f"{kind}: {text.rpartition('FATAL:')[2].strip()}"
    return words if len(words) <= 110 else words[:107].rsplit(" ", 1)[0] + " …"
