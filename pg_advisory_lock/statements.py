# ruff: noqa: S608 - only constants of this module are put into the statements
"""All SQL of the package.

Functions are named with their schema, so that no other function of that name on the search path is called.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, TextClause, bindparam, text

#: For these drivers, values are written into the statement. With a bound value they leave the statement's portal open
#: on the server, and with it a snapshot, for as long as the transaction is idle: CREATE INDEX CONCURRENTLY waits for
#: that, and vacuum is held back. pg8000 also needs three round trips for a bound value. psycopg2 itself writes values
#: into the text. asyncpg prepares each text, so this would cost more, and it keeps the portal open anyway.
_WRITES_VALUES = frozenset({"psycopg", "psycopg_async", "pg8000"})


@dataclass(frozen=True)
class Statement:
    """One statement, with its values bound and with its values written into it."""

    bound: TextClause
    written: TextClause

    @classmethod
    def of(cls, sql: str, *names: str) -> Statement:
        def made(written: bool) -> TextClause:
            return text(sql).bindparams(*(bindparam(name, type_=BigInteger, literal_execute=written) for name in names))

        return cls(bound=made(False), written=made(True))

    def for_driver(self, driver: str) -> TextClause:
        return self.written if driver in _WRITES_VALUES else self.bound


# Identifies one transaction: a server process cannot begin two in the same microsecond. In microseconds and as a
# number, because the text form of a time depends on settings that can change during a transaction.
_TRANSACTION = (
    "pg_catalog.pg_backend_pid() AS pid, "
    "CAST(extract(epoch FROM pg_catalog.transaction_timestamp()) * 1000000 AS bigint) AS began"
)

#: A setting of the transaction in which ``held()`` leaves a mark. A rollback to a savepoint undoes the setting if and
#: only if it undoes the lock that the same statement took.
_MARKS = "pg_catalog.current_setting('pg_advisory_lock.held', true)"
_LEAVE_MARK = f"pg_catalog.set_config('pg_advisory_lock.held', pg_catalog.concat({_MARKS}, ' ', :turn), true) AS marked"
_TURN = "CAST(:turn AS bigint) AS turn"


def try_lock(shared: bool, marked: bool) -> Statement:
    """One row: taken, standby, pid, began. Waits for no lock. With ``marked``, leaves ``:turn`` in the transaction.

    ``:turn`` is a new number each time, here and in ``wait_lock()``: psycopg prepares a text that it sees for the sixth
    time, and a prepared statement leaves its portal open as a bound value does.
    """
    return _TRY[shared, marked]


def wait_lock(shared: bool) -> Statement:
    """One row: pid, began; or SQLSTATE 55P03 after ``:timeout`` milliseconds."""
    return _WAIT[shared]


def _try(function: str, marked: bool) -> Statement:
    columns = [
        f"pg_catalog.{function}(CAST(:key AS bigint)) AS taken",
        "pg_catalog.pg_is_in_recovery() AS standby",
        _LEAVE_MARK if marked else _TURN,
        _TRANSACTION,
    ]
    return Statement.of(f"SELECT {', '.join(columns)}", "key", "turn")


def _wait(function: str) -> Statement:
    # Each step reads the one before, so the order is fixed: remember, limit, lock, restore. PostgreSQL reads
    # lock_timeout when a wait begins, so the limit counts for the lock in the same statement. If the lock fails, the
    # rollback to the savepoint restores the value.
    return Statement.of(
        f"""
WITH caller AS MATERIALIZED (
    SELECT pg_catalog.current_setting('lock_timeout') AS lock_timeout
), limited AS MATERIALIZED (
    SELECT lock_timeout, pg_catalog.set_config('lock_timeout', CAST(:timeout AS text), true) AS limit_set FROM caller
), locked AS MATERIALIZED (
    SELECT lock_timeout, pg_catalog.{function}(CAST(:key AS bigint)) AS lock_set
    FROM limited WHERE limit_set IS NOT NULL
)
SELECT {_TRANSACTION}, {_TURN}, pg_catalog.set_config('lock_timeout', lock_timeout, true) AS restored FROM locked""",
        "timeout",
        "key",
        "turn",
    )


_SHARED = {False: "", True: "_shared"}
_TRY = {
    (shared, marked): _try(f"pg_try_advisory_xact_lock{suffix}", marked)
    for shared, suffix in _SHARED.items()
    for marked in (False, True)
}
_WAIT = {shared: _wait(f"pg_advisory_xact_lock{suffix}") for shared, suffix in _SHARED.items()}

#: One row: marks, pid, began, as seen by the transaction that asks.
MARKS = Statement.of(f"SELECT {_MARKS} AS marks, {_TRANSACTION}")

# The server keeps its first answer about activity until the transaction ends, so the statement clears it first: the
# second table reads the first, and the function is called for each row of the second.
# Functions instead of the views pg_locks and pg_stat_activity and the table pg_database: somebody may have locked
# those, but the functions read the server's memory.
# pg_locks shows an advisory lock on one bigint as two halves, with objsubid 1 (locks on two integers have 2).
# to_jsonb: a server before version 14 has no column waitstart, but the statement must be valid there too.
# A time as a number of microseconds, because drivers read times by the settings of the session.
#: Rows: pid, own (whether it is the session that asks), application_name, since, shared, granted; first the holders,
#: then the waiters, the longest first.
HOLDERS = Statement.of(
    """
WITH fresh AS MATERIALIZED (
    SELECT pg_catalog.pg_stat_clear_snapshot() AS cleared
), known AS MATERIALIZED (
    SELECT l.pid, l.mode, l.granted, CAST(pg_catalog.to_jsonb(l) ->> 'waitstart' AS timestamptz) AS waits_since
    FROM fresh CROSS JOIN pg_catalog.pg_lock_status() l
    WHERE fresh.cleared IS NOT NULL AND l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT own.datid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) own)
    AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = CAST(:key AS bigint)
), timed AS MATERIALIZED (
    SELECT known.pid, known.mode, known.granted, a.application_name,
        CASE WHEN known.granted THEN a.xact_start ELSE coalesce(known.waits_since, a.query_start) END AS since
    FROM known LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(known.pid) a ON a.pid = known.pid
)
SELECT timed.pid, coalesce(timed.pid = pg_catalog.pg_backend_pid(), false) AS own,
    coalesce(timed.application_name, '') AS application_name, timed.mode = 'ShareLock' AS shared, timed.granted,
    CAST(extract(epoch FROM timed.since) * 1000000 AS bigint) AS since
FROM timed ORDER BY timed.granted DESC, timed.since NULLS LAST, timed.pid""",
    "key",
)

SAVEPOINT = Statement.of("SAVEPOINT pg_advisory_lock")
ROLLBACK_TO_SAVEPOINT = Statement.of("ROLLBACK TO SAVEPOINT pg_advisory_lock")
RELEASE_SAVEPOINT = Statement.of("RELEASE SAVEPOINT pg_advisory_lock")

#: The question who is in the way reads the server's catalogs to find functions, and somebody may have locked those.
WAIT_FOR_NO_CATALOG = Statement.of("SET LOCAL lock_timeout = 100")
