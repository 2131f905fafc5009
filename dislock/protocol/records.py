"""The SQL that records a run in the journal. Loaded only by a run that keeps one.

A statement is a value, as in ``statements``. None of these takes, renews or frees a lock, and none of those in
``statements`` reads the journal: what is wrong with one table never touches the other.
"""

# ruff: noqa: S608 - the templates are put together from constants of this module; every value is a parameter
from __future__ import annotations

from typing import NamedTuple

from dislock.protocol.statements import add, sql_moment

#: Rows that one cleaning deletes at most.
CLEANED_AT_ONCE = 500

# The record of a run waits for nobody: neither for a row that somebody has locked nor for a standby.
_MODEST = """
    modest AS MATERIALIZED (
        SELECT set_config('lock_timeout', '900ms', true),
               set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                   WHEN 'off' THEN 'off' ELSE 'local' END, true)
    )"""


# What is known of a run from its start.
_COLUMNS = "key, strategy, schedule, time_zone, tick, owner, token, command"
_VALUES = f"""%(key)s, %(strategy)s, %(schedule)s, %(time_zone)s, {sql_moment("tick")}, %(owner)s, %(token)s::bigint,
           %(command)s"""


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
    INSERT INTO {{journal}} ({_COLUMNS}, started_at)
    SELECT {_VALUES}, clock_timestamp() FROM modest
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
    INSERT INTO {{journal}} ({_COLUMNS}, started_at, ended_at, exit_code, outcome)
    SELECT {_VALUES}, clock_timestamp() - %(took)s::float8 * interval '1 microsecond', clock_timestamp(),
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


Record = StartRun | EndRun | CleanRuns
add(StartRun, _START, Recorded)
add(EndRun, _END, Recorded)
add(CleanRuns, _CLEAN, Recorded)
