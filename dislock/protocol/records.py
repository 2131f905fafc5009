"""The SQL of the journal of runs and of the operator's commands. Loaded only where one of the two is asked for.

As in ``statements``: a statement is a value, moments travel as whole microseconds since 1970, and only
``clock_timestamp()`` tells the time. No statement here takes, renews or frees a lock of a run, and none of those in
``statements`` reads the journal: what is wrong with one table never touches the other.
"""

# ruff: noqa: S608 - the templates are put together from constants of this module; every value is a parameter
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dislock.context import LEASE_PREFIX, SCHEDULE_PREFIX
from dislock.protocol.statements import NEVER, add

#: The columns of a journal, in their order, as they are created.
JOURNAL_COLUMNS = (
    ("id", "bigint", "GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ("key", "text", "NOT NULL"),
    ("strategy", "text", "NOT NULL"),
    ("schedule", "text", ""),
    ("time_zone", "text", ""),
    ("tick", "timestamp with time zone", ""),
    ("owner", "text", "NOT NULL"),
    ("token", "bigint", ""),
    ("command", "text", ""),
    ("started_at", "timestamp with time zone", "NOT NULL"),
    ("ended_at", "timestamp with time zone", ""),
    ("exit_code", "integer", ""),
    ("outcome", "text", ""),
)
LOCK_COLUMNS = (
    ("key", "text", "PRIMARY KEY"),
    ("value", "text", "NOT NULL"),
    ("expire_at", "timestamp with time zone", "NOT NULL"),
)
#: Rows that one cleaning deletes at most.
CLEANED_AT_ONCE = 500
#: The newest runs of a key that tell whether it is well.
RECENT = 30


def _columns(columns: Sequence[tuple[str, str, str]]) -> str:
    short = {"timestamp with time zone": "timestamptz"}
    lines = [f"    {name} {short.get(kind, kind)} {rest}".rstrip() for name, kind, rest in columns]
    return "(\n" + ",\n".join(lines) + "\n)"


CREATE_LOCKS = "CREATE TABLE {table} " + _columns(LOCK_COLUMNS)
CREATE_JOURNAL = "CREATE TABLE {table} " + _columns(JOURNAL_COLUMNS)
#: What each view of the journal looks runs up by, and the last success of a job that has failed for a year.
INDEX_JOURNAL = "CREATE INDEX ON {table} (key, started_at)"
INDEX_SUCCESSES = "CREATE INDEX ON {table} (key, started_at) WHERE outcome = 'success'"
GRANT_LOCKS = "SELECT, INSERT, UPDATE"
GRANT_JOURNAL = "SELECT, INSERT, UPDATE, DELETE"


def _micros(expression: str) -> str:
    return (
        f"CASE WHEN isfinite({expression}) IS FALSE THEN {NEVER} "
        f"ELSE (extract(epoch FROM {expression}) * 1000000)::bigint END"
    )


_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def _moment(parameter: str) -> str:
    return f"(timestamptz 'epoch' + %({parameter})s::float8 * interval '1 microsecond')"


# The record of a run waits for nobody: neither for a row that somebody has locked nor for a standby.
_MODEST = """
    modest AS MATERIALIZED (
        SELECT set_config('lock_timeout', '900ms', true),
               set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                   WHEN 'off' THEN 'off' ELSE 'local' END, true)
    )"""


class Recorded(NamedTuple):
    """A row of the journal that was written or deleted."""

    id: int


class StartRun(NamedTuple):
    """Records that a run has begun: one ``Recorded``."""

    key: str
    strategy: str
    schedule: str | None
    time_zone: str | None
    tick: int | None
    owner: str
    token: int | None
    command: str | None


_START = f"""
    WITH {_MODEST}
    INSERT INTO {{journal}} (key, strategy, schedule, time_zone, tick, owner, token, command, started_at)
    SELECT %(key)s, %(strategy)s, %(schedule)s, %(time_zone)s, {_moment("tick")}, %(owner)s, %(token)s::bigint,
           %(command)s, clock_timestamp() FROM modest
    RETURNING id"""


class EndRun(NamedTuple):
    """Records how a run ended: in the row of its start, or in a row of its own where that one is not there.

    The start is known by its token, not by its ``id``: its answer may have been lost.
    """

    key: str
    strategy: str
    schedule: str | None
    time_zone: str | None
    tick: int | None
    owner: str
    token: int | None
    command: str | None
    took: int
    exit_code: int | None
    outcome: str


_END = f"""
    WITH {_MODEST}, ended AS (
        UPDATE {{journal}} SET ended_at = clock_timestamp(), exit_code = %(exit_code)s::int, outcome = %(outcome)s
        FROM modest WHERE key = %(key)s AND owner = %(owner)s AND token IS NOT DISTINCT FROM %(token)s::bigint
          AND started_at > clock_timestamp() - %(took)s::float8 * interval '1 microsecond' - interval '1 day'
          AND ended_at IS NULL
        RETURNING 1
    )
    INSERT INTO {{journal}} (key, strategy, schedule, time_zone, tick, owner, token, command, started_at, ended_at,
                             exit_code, outcome)
    SELECT %(key)s, %(strategy)s, %(schedule)s, %(time_zone)s, {_moment("tick")}, %(owner)s, %(token)s::bigint,
           %(command)s, clock_timestamp() - %(took)s::float8 * interval '1 microsecond', clock_timestamp(),
           %(exit_code)s::int, %(outcome)s
    FROM modest WHERE NOT EXISTS (SELECT FROM ended)
    RETURNING id"""


class CleanRuns(NamedTuple):
    """Deletes runs of the key that began longer ago than ``days``, some at a time: a ``Recorded`` for each."""

    key: str
    days: int


_CLEAN = f"""
    DELETE FROM {{journal}} WHERE id IN (
        SELECT id FROM {{journal}}
        WHERE key = %(key)s AND started_at < clock_timestamp() - %(days)s::int * interval '1 day'
        ORDER BY started_at LIMIT {CLEANED_AT_ONCE} FOR UPDATE SKIP LOCKED
    ) RETURNING id"""


# A run that has not ended: whether its lease is still its own (only the newest run of a key can have it: after a
# death, the next one may have the same owner string), and whether that was freed as at an orderly end, which writes
# the moment right after the acquisition.
_RUN = f"""run.id, run.key, run.strategy, run.schedule, run.time_zone, {_micros("run.tick")}, run.owner, run.token,
       run.command, {_micros("run.started_at")}, {_micros("run.ended_at")}, run.exit_code, run.outcome,
       CASE WHEN run.ended_at IS NULL THEN run.started_at = (
           SELECT max(started_at) FROM {{journal}} AS same WHERE same.key = run.key
       ) AND held.value = run.owner AND held.expire_at > clock_timestamp() END,
       CASE WHEN run.ended_at IS NULL
           THEN held.value = run.owner AND ({_micros("held.expire_at")}) = run.token + 1 END"""
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
    SELECT {_RUN}, {_micros("span.first")}, {_micros("success.ended_at")}
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
        (SELECT * FROM {{journal}} WHERE key = wanted.key AND started_at >= {_moment("since")}
         ORDER BY started_at DESC LIMIT %(limit)s)
        UNION ALL
        (SELECT * FROM {{journal}} WHERE key = wanted.key AND started_at < {_moment("since")}
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
    SELECT key, value, {_micros("expire_at")}, {_NOW}, expire_at > clock_timestamp() FROM {{table}}
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
           current_setting('default_transaction_read_only') = 'on', {_NOW}"""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: str
    required: bool
    """Whether it is NOT NULL."""


class Form(NamedTuple):
    """The columns of a table, as ``Column``; none where there is no such table."""

    name: str


_FORM = """
    SELECT attname::text, format_type(atttypid, NULL), attnotnull FROM pg_catalog.pg_attribute
    WHERE attrelid = to_regclass(%(name)s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""


class Rights(NamedTuple):
    """What this role may do with a table that exists, and its indexes: one ``RightsRow``."""

    name: str


class RightsRow(NamedTuple):
    select: bool
    insert: bool
    update: bool
    delete: bool
    kind: str
    unique_key: bool
    """Whether a unique index is on the column ``key`` alone."""
    key_first: bool
    """Whether an index begins with the columns ``key`` and ``started_at``."""


_RIGHTS = """
    SELECT has_table_privilege(oid, 'SELECT'), has_table_privilege(oid, 'INSERT'),
           has_table_privilege(oid, 'UPDATE'), has_table_privilege(oid, 'DELETE'), relkind::text,
           EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisunique AND indpred IS NULL
                   AND indnkeyatts = 1 AND pg_get_indexdef(indexrelid, 1, true) = 'key'),
           EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indpred IS NULL
                   AND pg_get_indexdef(indexrelid, 1, true) = 'key'
                   AND pg_get_indexdef(indexrelid, 2, true) = 'started_at')
    FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s)"""


class CommandRow(NamedTuple):
    command: str | None
    host: str
    runs: int


class CommandsOfKey(NamedTuple):
    """The different commands and hosts among the newest runs of a key, as ``CommandRow``."""

    key: str


_COMMANDS = f"""
    SELECT command, regexp_replace(owner, ':[0-9]+$', ''), count(*) FROM (
        SELECT command, owner FROM {{journal}} WHERE key = %(key)s ORDER BY started_at DESC LIMIT {RECENT}
    ) AS run GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"""


class SerializeInit(NamedTuple):
    """Lets one of several that create tables at one time go first."""


_SERIALIZE = "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('dislock --init', 0))"

Record = StartRun | EndRun | CleanRuns
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
    | Form
    | Rights
    | CommandsOfKey
    | SerializeInit
)


_ANSWERED: dict[type, tuple[str, Callable[..., Any]]] = {
    StartRun: (_START, Recorded),
    EndRun: (_END, Recorded),
    CleanRuns: (_CLEAN, Recorded),
    NewestRuns: (_NEWEST, RunRow),
    RunsOfKey: (_OF_KEY, RunRow),
    RecentRuns: (_RECENT, _recent_row),
    RunsSince: (_SINCE, RunRow),
    Locks: (_LOCKS, LockRow),
    FreeLock: (_FREE, Count),
    ForgetRuns: (_FORGET_RUNS, Count),
    ForgetLocks: (_FORGET_LOCKS, Count),
    Server: (_SERVER, ServerRow),
    Form: (_FORM, Column),
    Rights: (_RIGHTS, RightsRow),
    CommandsOfKey: (_COMMANDS, CommandRow),
    SerializeInit: (_SERIALIZE, Count),
}
for _kind, (_text, _row) in _ANSWERED.items():
    add(_kind, _text, _row)


def quoted(parts: Sequence[str]) -> str:
    """A table's name as it has to be written in SQL to mean itself."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
