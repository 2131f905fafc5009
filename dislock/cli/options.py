"""Every setting of the command line: variable, option, default, help and check.

The parser, ``--help`` and the documents derive from ``OPTIONS``; nothing repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from dislock.cli.values import (
    ADVISORY,
    LEASE,
    SCHEDULE,
    read_consumed_by,
    read_cron,
    read_days,
    read_exit_code,
    read_format,
    read_level,
    read_lock_key,
    read_policy,
    read_strategies,
    read_switch,
    read_table,
    seconds,
)
from dislock.context import SHORTEST_INTERVAL_SECONDS, SHORTEST_TTL_SECONDS

#: The headings of ``--help``, in their order.
LOCKING = "What to lock"
LEASES = "Leases"
DATABASE = "The database"
JOURNAL = "The journal of runs"
REPORTING = "What is reported"
GROUPS = (LOCKING, LEASES, DATABASE, JOURNAL, REPORTING)


class Option(NamedTuple):
    """One setting: the environment variable and the option that overrides it."""

    variable: str
    option: str
    metavar: str
    help: str
    read: Callable[[str], object]
    default: str | None = None
    """The value when it is unset or empty, as a user would write it; None: no value."""
    shown: str = ""
    """What ``--help`` shows in place of the default."""
    strategies: tuple[str, ...] = ()
    """The strategies that read it; empty: all of them."""
    group: str = LOCKING
    """The heading under which ``--help`` lists it."""

    def is_read_by(self, strategies: Collection[str]) -> bool:
        """Whether a run with these strategies reads it."""
        return not self.strategies or not set(self.strategies).isdisjoint(strategies)


OPTIONS = (
    Option(
        "LOCK_KEY",
        "--lock-key",
        "NAME",
        "The job's name. Hosts that share it exclude each other.",
        read_lock_key,
        shown="required",
    ),
    Option(
        "CRON_SCHEDULE",
        "--schedule",
        "EXPRESSION",
        "When the job runs: five cron fields, six (seconds come last), seven (then years), or an alias such as "
        "@daily. A slot lasts from one tick to the next.",
        read_cron,
        shown="required for schedule",
        strategies=(SCHEDULE,),
    ),
    Option(
        "CRON_TZ",
        "--time-zone",
        "ZONE",
        "The zone of the expression: an IANA name such as Europe/Berlin. It must be the one in which cron fires; with "
        "another one, ticks are skipped or started twice.",
        read_cron,
        shown="the database session's",
        strategies=(SCHEDULE,),
    ),
    Option(
        "LOCK_STRATEGY",
        "--strategy",
        "WORDS",
        "schedule: one start per tick. lease: one run at a time. schedule,lease: both. advisory: one run at a time "
        "under an advisory lock, without a table; programs that use pg_advisory_lock take the same one.",
        read_strategies,
        "schedule",
    ),
    Option(
        "LOCK_TABLE",
        "--table",
        "NAME",
        "The lock table: table or schema.table, in the case in which it is stored. Put a part that holds a dot in "
        'double quotes: "my.schema"."locks".',
        read_table,
        "key_value",
        group=DATABASE,
    ),
    Option(
        "RUN_LOCK_TTL_SECONDS",
        "--ttl",
        "SECONDS",
        "How long a lease outlives its last renewal.",
        seconds(SHORTEST_TTL_SECONDS),
        "60",
        strategies=(LEASE,),
        group=LEASES,
    ),
    Option(
        "LOCK_LEASE_INTERVAL",
        "--interval",
        "SECONDS",
        "The longest pause between two renewals; at most the TTL.",
        seconds(SHORTEST_INTERVAL_SECONDS),
        shown="0.3 x TTL, from 1 to 10",
        strategies=(LEASE,),
        group=LEASES,
    ),
    Option(
        "LOCK_JITTER_SECONDS",
        "--jitter",
        "SECONDS",
        "The longest random delay before the first connection; kept below the gap between two ticks.",
        seconds(),
        "0",
        group=DATABASE,
    ),
    Option(
        "LOCK_ON_LEASE_LOSS",
        "--on-lease-loss",
        "WORD",
        "terminate: stop the command (SIGTERM, then SIGKILL) and exit with 75. continue: only log the loss.",
        read_policy,
        "terminate",
        group=LEASES,
    ),
    Option(
        "LOCK_KILL_GRACE_SECONDS",
        "--kill-grace",
        "SECONDS",
        "After a lost lease, the time between SIGTERM and SIGKILL; at most a third of the TTL if renewals failed until "
        "the lease had to be given up. A signal that dislock itself gets is passed on, and starts no timer; what the "
        "command then leaves of its process group is killed this long after its end.",
        seconds(),
        "10",
        group=LEASES,
    ),
    Option(
        "LOCK_CONNECT_TIMEOUT_SECONDS",
        "--connect-timeout",
        "SECONDS",
        "How long to try to reach the database, all hosts and all attempts together.",
        seconds(above=True),
        "10",
        group=DATABASE,
    ),
    Option(
        "LOCK_SLOT_TOLERANCE_SECONDS",
        "--slot-tolerance",
        "SECONDS",
        "How early, by the database's clock, a start still belongs to the coming tick; at most half the gap between "
        "two ticks.",
        seconds(),
        "5",
        strategies=(SCHEDULE,),
    ),
    Option(
        "LOCK_JOURNAL",
        "--journal",
        "NAME",
        "The table that keeps a record of each run, in the notation of the lock table. --schema prints its SQL, and "
        "--runs, --overdue and --timeline read it.",
        read_table,
        shown="no journal",
        group=JOURNAL,
    ),
    Option(
        "LOCK_JOURNAL_KEEP_DAYS",
        "--journal-keep-days",
        "DAYS",
        "How long runs are kept: older ones of the same key are deleted after a run. 0 keeps all.",
        read_days,
        "90",
        group=JOURNAL,
    ),
    Option(
        "LOCK_WAIT_SECONDS",
        "--wait",
        "SECONDS",
        "How long to wait for a lease or an advisory lock that somebody else holds. For a lease, first come is not "
        "first served. A slot is never waited for: a tick that was started is not started again.",
        seconds(),
        "0",
        strategies=(LEASE, ADVISORY),
    ),
    Option(
        "LOCK_SLOT_CONSUMED_BY",
        "--slot-consumed-by",
        "WORD",
        "start: a tick that was started is not started again, however the run ends. success: only a run that ends with "
        "exit code 0 closes the tick; after any other end the next host that comes, or waits, runs it. success needs "
        "schedule,lease. All hosts of a key must use the same word.",
        read_consumed_by,
        "start",
    ),
    Option(
        "LOCK_SKIPPED_EXIT_CODE",
        "--skipped-exit-code",
        "CODE",
        "The exit code when somebody else holds the lock and nothing was run, like flock -E; from 0 to 255.",
        read_exit_code,
        shown="0, and 1 after a wait",
    ),
    Option(
        "CRONJOB_LOCK_LOG_LEVEL",
        "--log-level",
        "WORD",
        "DEBUG, INFO, WARNING, ERROR or CRITICAL. A lock held by somebody else is INFO. What decides the exit code is "
        "printed at every level.",
        read_level,
        "WARNING",
        group=REPORTING,
    ),
    Option(
        "CRONJOB_LOCK_LOG_FORMAT",
        "--log-format",
        "WORD",
        "plain: a line of text for each message. json: a JSON object for each, with the event and its fields.",
        read_format,
        "plain",
        group=REPORTING,
    ),
    Option(
        "CRONJOB_LOCK_LOG_TIME",
        "--log-time",
        "WORD",
        "on: the time in front of each plain line. off: no time, because cron and journald add their own.",
        read_switch,
        "off",
        group=REPORTING,
    ),
)

EXIT_CODES = (
    ("0", "The command succeeded, or somebody else holds the lock (nothing was run; see --skipped-exit-code)."),
    ("1", "Runtime failure: the database could not be reached, an answer was lost, or a wait ended without the lock."),
    ("2", "Invalid configuration or usage, or a lock table that is missing or not permitted."),
    ("75", "The lease was lost, or the tick was not sealed: the command's success does not count."),
    ("126", "The command cannot be executed."),
    ("127", "The command was not found."),
    ("128+N", "The command, or the wait for the lock, was ended by signal N."),
    ("other", "The command's own exit code."),
)

#: What is added to the command's environment.
GIVEN = (
    ("DISLOCK_LOCK_KEY", "The lock key."),
    ("DISLOCK_OWNER", "The owner that the row names: hostname:pid of dislock."),
    ("DISLOCK_SLOT", "With schedule: the tick that this run belongs to, as 2026-01-31T03:00:00Z."),
    ("DISLOCK_FENCING_TOKEN", "A number that rises with each acquisition, for systems that can refuse older ones."),
)

EXAMPLES = (
    (
        "At most one start per tick, on any number of hosts (crontab)",
        "CRON_TZ=UTC\n    0 0 * * * dislock --lock-key=job --schedule=@daily DATABASE_URL ./run",
    ),
    (
        "One run at a time, whenever it is started",
        "LOCK_KEY=import LOCK_STRATEGY=lease dislock DATABASE_URL ./import.py --all",
    ),
    (
        "Both",
        "dislock --lock-key=etl --strategy=schedule,lease --schedule='*/15 * * * *' \\\n"
        "      --time-zone=UTC --ttl=120 DATABASE_URL ./etl",
    ),
    (
        "Several replicas that migrate one database when they start",
        "dislock --lock-key=migrate --strategy=lease --wait=600 \\\n      DATABASE_URL ./migrate",
    ),
    (
        "One success per tick; a host that waits takes over from one that fails",
        "dislock --lock-key=report --strategy=schedule,lease --schedule='0 3 * * *' \\\n"
        "      --time-zone=UTC --slot-consumed-by=success --wait=3600 \\\n      DATABASE_URL ./report",
    ),
)
