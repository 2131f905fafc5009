"""What the journal costs a run, and how fast an operator's command answers from a journal of a million rows."""

from __future__ import annotations

import sys
from functools import partial

import psycopg

from benchmarks.bench import ROLE, Bench, name_of, run
from benchmarks.overhead import STRATEGIES

JOBS = 20
ROWS = 1_000_000
#: Seconds in which a list or a monitor's question is answered, the start of the program included.
LIMIT = 1.0
LIMITED = ("--runs", "--runs of a key", "--overdue", "--metrics")
QUESTIONS = {
    "--runs": ("--runs",),
    "--runs of a key": ("--runs", "--lock-key=job-3"),
    "--overdue": ("--overdue",),
    "--metrics": ("--metrics",),
    "--status": ("--status",),
    "--timeline of a day": ("--timeline",),
}
#: Twenty jobs, one of which has not succeeded for a year.
FILL = """
    INSERT INTO runs (key, strategy, schedule, time_zone, tick, owner, token, command, started_at, ended_at, exit_code,
                      outcome)
    SELECT 'job-' || n % {jobs}, 'schedule,lease', '*/15 * * * *', 'UTC', date_bin('15 min', t, 'epoch'), 'host:1', n,
           'run.sh 0a1b2c3d4e5f', t, t + interval '1 min', 0, CASE n % {jobs} WHEN 7 THEN 'failure' ELSE 'success' END
    FROM (SELECT n, now() - ({rows} - n) * interval '45 s' AS t FROM generate_series(1, {rows}) AS n) AS made
"""


def measure(bench: Bench) -> None:
    _cost(bench)
    _answers(bench)


def _cost(bench: Bench) -> None:
    """A wrapped `true` without and with a journal, in turns."""
    table = bench.table("journal", "A wrapped `true` with a journal", "elapsed", "without")
    url = _with_journal(bench)
    program = str(bench.product / "dislock")
    rounds = bench.rounds(20)
    for number in range(rounds + (not bench.quick)):
        for strategy, words in STRATEGIES.items():
            for name, more in {"without": {}, "with": {"LOCK_JOURNAL": "runs"}}.items():
                used = run([program, "DATABASE_URL", "true"], bench.environment(url, words, CRON_TZ="UTC", **more))
                if used.code:
                    sys.exit(f"{strategy}, {name} a journal: exit code {used.code}")
                if number or bench.quick:
                    table.add(strategy, name, "elapsed", "ms", used.seconds * 1000)
                    table.add(strategy, name, "processor", "ms", used.processor * 1000)


def _answers(bench: Bench) -> None:
    rows = 20_000 if bench.quick else ROWS
    table = bench.table("answers", f"An answer from a journal of {rows:,} rows")
    url = _with_journal(bench)
    with bench.admin(name_of(url)) as admin:
        admin.execute(FILL.format(jobs=JOBS, rows=rows).encode())
        admin.execute("ANALYZE runs")
    ask = partial(bench.environment, url, LOCK_JOURNAL="runs")
    for number in range(bench.rounds(5) + 1):
        for name, words in QUESTIONS.items():
            used = run([str(bench.product / "dislock"), *words, "DATABASE_URL"], ask())
            if used.code not in (0, 2):
                sys.exit(f"{name}: exit code {used.code}")
            if number:
                table.add(name, "pip", "elapsed", "ms", used.seconds * 1000)
    for row in table.rows:
        median = row.median("elapsed")
        assert median is not None
        if row.case in LIMITED:
            bench.limit(f"{row.case} from {rows:,} rows, in seconds", median / 1000, LIMIT)


def _with_journal(bench: Bench) -> str:
    """A database with both tables, and the role that is measured."""
    url = bench.database()
    owner = bench.server.url(name_of(url))
    used = run(
        [str(bench.product / "dislock"), "--init", "--journal=runs", "DATABASE_URL"],
        {**bench.environment(owner), "DATABASE_URL": owner},
    )
    if used.code:
        sys.exit(f"--init: exit code {used.code}")
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"GRANT ALL ON runs TO {ROLE}".encode())
    return url
