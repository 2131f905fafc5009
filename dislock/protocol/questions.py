"""The SQL of the operator's commands: what they ask of the journal, of the lock table and of the server.

A statement is a value, as in ``statements``. None of these takes or renews a lock.
"""

# ruff: noqa: S608 - the templates are put together from constants of this module; every value is a parameter
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dislock.context import LEASE_PREFIX, SCHEDULE_PREFIX
from dislock.protocol.schema import TableQuestion
from dislock.protocol.statements import SQL_NOW, add, sql_micros, sql_moment

#: The newest runs of a key that tell whether it is well.
RECENT = 30


# A run that has not ended: whether its lease is still its own (only the newest run of a key can have it: after a
# death, the next one may have the same owner string), and whether that was freed as at an orderly end, which writes
# the moment right after the acquisition.
_RUN = f"""run.id, run.key, run.strategy, run.schedule, run.time_zone, {sql_micros("run.tick")}, run.owner, run.token,
       run.command, {sql_micros("run.started_at")}, {sql_micros("run.ended_at")}, run.exit_code, run.outcome,
       CASE WHEN run.ended_at IS NULL THEN run.started_at = (
           SELECT max(started_at) FROM {{journal}} AS same WHERE same.key = run.key
       ) AND held.value = run.owner AND held.expire_at > clock_timestamp() END,
       CASE WHEN run.ended_at IS NULL
           THEN held.value = run.owner AND ({sql_micros("held.expire_at")}) = run.token + 1 END"""
_HELD = f"LEFT JOIN {{table}} AS held ON held.key = '{LEASE_PREFIX}' || run.key"


class RunRow(NamedTuple):
    """One run as it is stored, and what the lock table says of its lease (None: the run has ended)."""

    id: int
    key: str
    strategy: str
    schedule: str | None
    time_zone: str | None
    tick: int | None
    owner: str
    token: int | None
    command: str | None
    started: int
    ended: int | None
    exit_code: int | None
    outcome: str | None
    live: bool | None
    freed: bool | None


class NewestRuns(NamedTuple):
    """The newest runs of all keys, as ``RunRow``."""

    limit: int


_NEWEST = f"""
    SELECT {_RUN} FROM (SELECT * FROM {{journal}} ORDER BY id DESC LIMIT %(limit)s) AS run {_HELD}
    ORDER BY run.id DESC"""


class RunsOfKey(NamedTuple):
    """The newest runs of one key, as ``RunRow``."""

    key: str
    limit: int


_OF_KEY = f"""
    SELECT {_RUN} FROM (
        SELECT * FROM {{journal}} WHERE key = %(key)s ORDER BY started_at DESC LIMIT %(limit)s
    ) AS run {_HELD} ORDER BY run.started_at DESC"""

# All keys, by jumping from one to the next in the index instead of reading every row.
_KEYS = """
    keys AS (
        (SELECT key FROM {journal} ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (SELECT next.key FROM {journal} AS next WHERE next.key > keys.key ORDER BY next.key LIMIT 1)
        FROM keys WHERE keys.key IS NOT NULL
    ), wanted AS (
        SELECT key FROM keys WHERE key IS NOT NULL AND (%(only)s::text IS NULL OR key = %(only)s)
    )"""


class RecentRow(NamedTuple):
    """One of the newest runs of its key, and of that key: when its first run began and its last success ended."""

    run: RunRow
    first: int
    success: int | None


def _recent_row(*columns: Any) -> RecentRow:
    width = len(RunRow._fields)
    return RecentRow(RunRow(*columns[:width]), *columns[width:])


class RecentRuns(NamedTuple):
    """The newest runs of each key, oldest first, as ``RecentRow``."""

    only: str | None


_RECENT = f"""
    WITH RECURSIVE {_KEYS}
    SELECT {_RUN}, {sql_micros("span.first")}, {sql_micros("success.ended_at")}
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT started_at AS first FROM {{journal}} WHERE key = wanted.key ORDER BY started_at LIMIT 1
    ) AS span
    LEFT JOIN LATERAL (
        SELECT ended_at FROM {{journal}} WHERE key = wanted.key AND outcome = 'success'
        ORDER BY started_at DESC LIMIT 1
    ) AS success ON true
    CROSS JOIN LATERAL (
        SELECT * FROM {{journal}} WHERE key = wanted.key ORDER BY started_at DESC LIMIT {RECENT}
    ) AS run
    {_HELD}
    ORDER BY run.key, run.started_at, run.id"""


class RunsSince(NamedTuple):
    """The runs of each key since a moment and the last one before it, oldest first, as ``RunRow``."""

    only: str | None
    since: int
    limit: int


_SINCE = f"""
    WITH RECURSIVE {_KEYS}
    SELECT {_RUN} FROM wanted CROSS JOIN LATERAL (
        (SELECT * FROM {{journal}} WHERE key = wanted.key AND started_at >= {sql_moment("since")}
         ORDER BY started_at DESC LIMIT %(limit)s)
        UNION ALL
        (SELECT * FROM {{journal}} WHERE key = wanted.key AND started_at < {sql_moment("since")}
         ORDER BY started_at DESC LIMIT 1)
    ) AS run
    {_HELD}
    ORDER BY run.key, run.started_at, run.id"""


class LockRow(NamedTuple):
    """One row of the lock table: its full key, the owner, its end, the time now, and whether it is held."""

    key: str
    owner: str
    expires: int
    now: int
    held: bool


class Locks(NamedTuple):
    """The locks of all keys or of one, as ``LockRow``."""

    only: str | None


_LOCKS = f"""
    SELECT key, value, {sql_micros("expire_at")}, {SQL_NOW}, expire_at > clock_timestamp() FROM {{table}}
    WHERE CASE WHEN %(only)s::text IS NULL THEN starts_with(key, 'cronjob-lock:')
          ELSE key IN ('{SCHEDULE_PREFIX}' || %(only)s, '{LEASE_PREFIX}' || %(only)s) END
    ORDER BY substr(key, 1 + length(CASE WHEN starts_with(key, '{LEASE_PREFIX}') THEN '{LEASE_PREFIX}'
                                    ELSE '{SCHEDULE_PREFIX}' END)), key DESC"""


class Count(NamedTuple):
    """How many rows it were."""

    number: int


class FreeLock(NamedTuple):
    """Frees a lock by force, if it is still held by the owner that was seen: a ``Count`` for each that was freed."""

    key: str
    owner: str


_FREE = """
    UPDATE {table} SET expire_at = LEAST(expire_at, clock_timestamp())
    WHERE key = %(key)s AND value = %(owner)s AND expire_at > clock_timestamp() RETURNING 1"""


class ForgetRuns(NamedTuple):
    """Deletes all runs of a key: one ``Count``."""

    key: str


_FORGET_RUNS = """
    WITH gone AS (DELETE FROM {journal} WHERE key = %(key)s RETURNING 1) SELECT count(*) FROM gone"""


class ForgetLocks(NamedTuple):
    """Deletes the rows of a key that nobody holds: one ``Count``."""

    key: str


_FORGET_LOCKS = f"""
    WITH gone AS (
        DELETE FROM {{table}} WHERE key IN ('{SCHEDULE_PREFIX}' || %(key)s, '{LEASE_PREFIX}' || %(key)s)
        AND expire_at <= clock_timestamp() RETURNING 1
    ) SELECT count(*) FROM gone"""


class Server(NamedTuple):
    """What is at the other end: one ``ServerRow``."""


class ServerRow(NamedTuple):
    version: str
    database: str
    role: str
    zone: str
    standby: bool
    read_only: bool
    """By ``default_transaction_read_only`` of the role, the database or the connection string."""
    now: int


_SERVER = f"""
    SELECT current_setting('server_version'), current_database()::text, current_user::text,
           current_setting('TimeZone'), pg_is_in_recovery(),
           current_setting('default_transaction_read_only') = 'on', {SQL_NOW}"""


class CommandRow(NamedTuple):
    command: str | None
    host: str
    last: int
    """When the newest of these runs began."""


class CommandsOfKey(NamedTuple):
    """The different commands and hosts among the newest runs of a key, as ``CommandRow``; the latest last."""

    key: str


_COMMANDS = f"""
    SELECT command, regexp_replace(owner, ':[0-9]+$', ''), {sql_micros("max(started_at)")} FROM (
        SELECT command, owner, started_at FROM {{journal}} WHERE key = %(key)s ORDER BY started_at DESC LIMIT {RECENT}
    ) AS run GROUP BY 1, 2 ORDER BY 3, 1, 2"""


Question = (
    NewestRuns
    | RunsOfKey
    | RecentRuns
    | RunsSince
    | Locks
    | FreeLock
    | ForgetRuns
    | ForgetLocks
    | Server
    | CommandsOfKey
    | TableQuestion
)

_ANSWERED: dict[type, tuple[str, Callable[..., Any]]] = {
    NewestRuns: (_NEWEST, RunRow),
    RunsOfKey: (_OF_KEY, RunRow),
    RecentRuns: (_RECENT, _recent_row),
    RunsSince: (_SINCE, RunRow),
    Locks: (_LOCKS, LockRow),
    FreeLock: (_FREE, Count),
    ForgetRuns: (_FORGET_RUNS, Count),
    ForgetLocks: (_FORGET_LOCKS, Count),
    Server: (_SERVER, ServerRow),
    CommandsOfKey: (_COMMANDS, CommandRow),
}
for _kind, (_text, _row) in _ANSWERED.items():
    add(_kind, _text, _row)
