"""What an advisory lock adds to a transaction of SQLAlchemy, on each driver, free and taken."""

from __future__ import annotations

import json
from contextlib import ExitStack

from benchmarks.bench import Bench
from benchmarks.worker import Worker

#: What a table calls each call.
CALLS = {
    "bare": "`SELECT pg_try_advisory_xact_lock(…)`",
    "lock": "`lock()`",
    "lock_immediate": "`lock_immediate()`",
    "held": "`held()`",
    "lock_immediate, taken": "`lock_immediate()`, taken: False",
    "lock_immediate, taken, raising": "`lock_immediate()`, taken: raises",
    "lock, taken": "`lock(timeout_in_ms=1)`, taken: False",
}
DRIVERS = (("psycopg", "sync"), ("psycopg", "async"), ("psycopg2", "sync"), ("asyncpg", "async"), ("pg8000", "sync"))
#: Of the product's calls, those that the published package has too.
PUBLISHED = "pg-advisory-lock 0.1.0"
#: Statements of each call in its transaction, by the documents: BEGIN and the end are two more.
STATEMENTS = {"lock": 1, "lock_immediate": 1, "held": 2, "lock_immediate, taken": 1}


def measure(bench: Bench) -> None:
    table = bench.table("transactions", "A transaction that takes an advisory lock", "elapsed", CALLS["bare"])
    url = bench.database(logged=bench.quick)
    seconds = 0.01 if bench.quick else 0.12
    drivers = DRIVERS[:1] if bench.quick else DRIVERS
    with ExitStack() as stack:
        workers: dict[tuple[str, str], Worker] = {}
        for driver, kind in drivers:
            case = driver if kind == "sync" or driver == "asyncpg" else f"{driver}, asyncio"
            ours = Worker(bench.product / "python", "transactions", driver, kind, url)
            workers[case, ""] = stack.enter_context(ours)
            if driver == "psycopg" and kind == "sync" and (published := bench.peer("published-advisory")):
                peer = Worker(published / "python", "transactions", driver, kind, url)
                workers[case, f"{PUBLISHED}: "] = stack.enter_context(peer)
        for worker in workers.values():
            worker.hear()
        # The first of all rounds loads, compiles and prepares, and is thrown away.
        for number in range(bench.rounds(7) + (not bench.quick)):
            for (case, prefix), worker in workers.items():
                for call, shown in CALLS.items():
                    if prefix and call in ("bare", "held"):
                        continue
                    took = worker.ask(json.dumps([call, seconds]))
                    if number or bench.quick:
                        table.add(case, f"{prefix}{shown}", "elapsed", "µs", took)
        if bench.quick:
            _count(bench, url, workers["psycopg", ""])
    table.notes.append(
        "Each transaction begins, takes the lock and commits, on a connection that is kept. The last two lines of a "
        "driver also pay for what a refusal says, and for the millisecond that they wait."
    )


def _count(bench: Bench, url: str, worker: Worker) -> None:
    for call, most in STATEMENTS.items():
        with bench.watched(url) as traffic:
            # One transaction: the shortest time there is.
            worker.ask(json.dumps([call, 0]))
        sent = len([text for text in traffic.statements if text not in ("BEGIN", "COMMIT", "ROLLBACK")])
        bench.at_most(f"{call}: statements", sent, most)
