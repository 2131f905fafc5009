"""The statements of the strategy advisory. A statement is a value, and knows its SQL.

Each is a constant, except for whole numbers, which are written into it: a bound parameter would keep a snapshot for the
whole transaction, and that would hold back vacuum for every table of the database.
"""

# ruff: noqa: S608 - only whole numbers of this package are written into a statement
from __future__ import annotations

from typing import NamedTuple


class Begin(NamedTuple):
    """Begins the transaction that holds the lock."""

    def sql(self) -> str:
        """The statement's SQL."""
        return "BEGIN ISOLATION LEVEL READ COMMITTED"


class Outlast(NamedTuple):
    """Keeps the server from ending the transaction, and lets it notice a dead host within half a minute.

    The server's own keepalive takes two hours on Linux. A setting that the server does not have is left out. One row:
    its first column says whether the server is a standby.
    """

    def sql(self) -> str:
        """The statement's SQL."""
        return """
    SELECT pg_is_in_recovery(), count(set_config(wanted.name, wanted.value, true))
    FROM (VALUES ('tcp_keepalives_idle', '15'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
                 ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'), ('statement_timeout', '0'))
         AS wanted (name, value)
    WHERE EXISTS (SELECT FROM pg_catalog.pg_settings AS known WHERE known.name = wanted.name)"""


class Try(NamedTuple):
    """Takes the lock if it is free. One row: whether it was taken."""

    key: int

    def sql(self) -> str:
        """The statement's SQL."""
        return f"SELECT pg_try_advisory_xact_lock({self.key})"


class SetTimeout(NamedTuple):
    """Bounds the wait for the lock, in whole milliseconds."""

    milliseconds: int

    def sql(self) -> str:
        """The statement's SQL."""
        return f"SELECT set_config('lock_timeout', '{self.milliseconds}', true)"


class Queue(NamedTuple):
    """Waits for the lock in the server's own queue, which serves waiters in turn."""

    key: int

    def sql(self) -> str:
        """The statement's SQL."""
        return f"SELECT pg_advisory_xact_lock({self.key})::text"


class Holder(NamedTuple):
    """Who has the lock, as far as this role may know. One row: application names and process numbers."""

    high: int
    low: int

    def sql(self) -> str:
        """The statement's SQL."""
        return f"""
    SELECT string_agg(coalesce(nullif(session.application_name, ''), 'a session') || ' (process ' || lock.pid || ')',
                      ', ' ORDER BY lock.pid)
    FROM pg_catalog.pg_locks AS lock LEFT JOIN pg_catalog.pg_stat_activity AS session ON session.pid = lock.pid
    WHERE lock.locktype = 'advisory' AND lock.granted AND lock.objsubid = 1
      AND lock.classid::bigint = {self.high} AND lock.objid::bigint = {self.low}
      AND lock.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"""


class Ping(NamedTuple):
    """A trivial statement."""

    def sql(self) -> str:
        """The statement's SQL."""
        return "SELECT 1"


class Commit(NamedTuple):
    """Ends the transaction, which frees the lock."""

    def sql(self) -> str:
        """The statement's SQL."""
        return "COMMIT"


AdvisoryStatement = Begin | Outlast | Try | SetTimeout | Queue | Holder | Ping | Commit
