# ruff: noqa: S608 - what is put into the statements are constants of this module; values are always bound
"""All SQL of the package.

Functions are named with their schema, so that no function of the same name on a search path can answer in their place.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, BindParameter, Text, TextClause, bindparam, text

# Names one transaction: a server process cannot begin two in the same microsecond. In microseconds and as a number,
# because the printed form of a time depends on settings that may change in the middle of a transaction.
_TRANSACTION = (
    "pg_catalog.pg_backend_pid() AS pid, "
    "CAST(extract(epoch FROM pg_catalog.transaction_timestamp()) * 1000000 AS bigint) AS began"
)

# How pg_locks shows an advisory lock on one bigint: two halves, and objsubid 1 (locks on two integers have 2).
_THIS_LOCK = """
    l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
    AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = :key"""


def _statement(sql: str, *more: str) -> TextClause:
    parameters: list[BindParameter[Any]] = [bindparam("key", type_=BigInteger)]
    parameters += [bindparam(name, type_=Text) for name in more]
    return text(sql).bindparams(*parameters)


def try_lock(shared: bool) -> TextClause:
    """One row: taken, pid, began. Waits for nobody's lock."""
    return _TRY[shared]


def wait_lock(shared: bool) -> TextClause:
    """One row: pid, began; or SQLSTATE 55P03 after ``:timeout`` milliseconds."""
    return _WAIT[shared]


def _try(function: str) -> TextClause:
    return _statement(f"SELECT pg_catalog.{function}(:key) AS taken, {_TRANSACTION}")


def _wait(function: str) -> TextClause:
    # Each step reads the one before, so the order is fixed: remember, limit, lock, restore. PostgreSQL reads
    # lock_timeout at the moment a wait begins, so the limit holds for the lock in the same statement. If that fails,
    # the rollback to the savepoint restores the value.
    return _statement(
        f"""
WITH caller AS MATERIALIZED (
    SELECT pg_catalog.current_setting('lock_timeout') AS lock_timeout
), limited AS MATERIALIZED (
    SELECT lock_timeout, pg_catalog.set_config('lock_timeout', :timeout, true) AS limit_set FROM caller
), locked AS MATERIALIZED (
    SELECT lock_timeout, pg_catalog.{function}(:key) AS lock_set FROM limited WHERE limit_set IS NOT NULL
)
SELECT {_TRANSACTION}, pg_catalog.set_config('lock_timeout', lock_timeout, true) AS restored FROM locked""",
        "timeout",
    )


_TRY = {False: _try("pg_try_advisory_xact_lock"), True: _try("pg_try_advisory_xact_lock_shared")}
_WAIT = {False: _wait("pg_advisory_xact_lock"), True: _wait("pg_advisory_xact_lock_shared")}

#: One row: held, pid, began, as seen by the transaction that asks. ``:mode`` is pg_locks' word.
STILL_HELD = _statement(
    f"""
SELECT {_TRANSACTION}, EXISTS (
    SELECT 1 FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.granted AND l.mode = :mode AND {_THIS_LOCK}
) AS held""",
    "mode",
)

# The server keeps its first answer about activity until the transaction ends, so what it keeps is thrown away first:
# the second table reads the first, and the function is called for each row of the second.
# to_jsonb: a server before version 14 has no column waitstart, and there the statement must still parse.
#: Rows: pid, own (whether it asks itself), application_name, since, mode, granted; holders first, then waiters, the
#: longest first.
HOLDERS = _statement(
    f"""
WITH fresh AS MATERIALIZED (
    SELECT pg_catalog.pg_stat_clear_snapshot() AS cleared
), known AS MATERIALIZED (
    SELECT l.pid, l.mode, l.granted, CAST(pg_catalog.to_jsonb(l) ->> 'waitstart' AS timestamptz) AS waits_since
    FROM fresh CROSS JOIN pg_catalog.pg_locks l WHERE fresh.cleared IS NOT NULL AND {_THIS_LOCK}
)
SELECT known.pid, coalesce(known.pid = pg_catalog.pg_backend_pid(), false) AS own,
    coalesce(a.application_name, '') AS application_name, known.mode, known.granted,
    CASE WHEN known.granted THEN a.xact_start ELSE coalesce(known.waits_since, a.query_start) END AS since
FROM known LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(known.pid) a ON a.pid = known.pid
ORDER BY known.granted DESC, since NULLS LAST, known.pid"""
)

EXCLUSIVE_MODE = "ExclusiveLock"
SHARED_MODE = "ShareLock"
