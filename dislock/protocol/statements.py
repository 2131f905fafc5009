"""All SQL. A statement is a value: what it means is in its fields, how PostgreSQL says it is in its template.

Moments travel as whole microseconds since 1970: a ``timestamptz`` has no finer resolution, whole numbers compare
exactly, and neither DateStyle nor the session's zone nor an ``infinity`` in the table can bend them. ``lock_timeout``,
of the statements that may have to wait for a row, is in PostgreSQL's notation (``"1500ms"``).

Only ``clock_timestamp()`` is used: ``now()`` is the time at which the transaction began, which for a statement that
waited for a row lock lies in the past (https://www.postgresql.org/docs/current/functions-datetime.html).
"""

# ruff: noqa: S608 - the templates are put together from constants of this module; every value is a parameter
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: What a row that ends at ``infinity`` counts as.
NEVER = 2**63 - 1


def to_micros(moment: datetime) -> int:
    """An aware datetime as whole microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def to_moment(micros: int) -> datetime | None:
    """Microseconds since 1970 as a datetime in UTC; None where Python has none (``infinity``)."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def sql_micros(expression: str) -> str:
    """The SQL of a moment in microseconds since 1970."""
    # extract() of an infinite timestamp cannot be cast to bigint.
    return (
        f"CASE WHEN isfinite({expression}) IS FALSE THEN {NEVER} "
        f"ELSE (extract(epoch FROM {expression}) * 1000000)::bigint END"
    )


#: The SQL of the time now in microseconds since 1970.
SQL_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def sql_moment(parameter: str) -> str:
    """The SQL of a moment that is given as a parameter in microseconds since 1970."""
    # float8 holds whole numbers up to 2**53 exactly: microseconds until the year 2255.
    return f"(timestamptz 'epoch' + %({parameter})s::float8 * interval '1 microsecond')"


# A timestamp without a zone means another moment in every session, and a coarser one cannot tell two renewals apart.
_TYPE = """(SELECT format_type(column_.atttypid, column_.atttypmod) FROM pg_catalog.pg_attribute AS column_
        WHERE column_.attrelid = held.tableoid AND column_.attname = 'expire_at')"""
#: The types of ``expire_at`` that can hold a lock.
MOMENT_TYPES = ("timestamp with time zone", "timestamp(6) with time zone")


# Set for this one transaction, so that every pooler mode works. The role's own lock_timeout may be absent or absurd: a
# wait for somebody's row lock must end before the caller gives up, or the statement would be carried out later, when
# nobody is there to hear of it. An acquisition that a crash of the server (off) or a failover (local) could undo would
# be a lock for two.
_SAFE = """
    safe AS MATERIALIZED (
        SELECT set_config('lock_timeout', %(lock_timeout)s, true),
               set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                   THEN 'on' ELSE current_setting('synchronous_commit') END, true)
    )"""


class Clock(NamedTuple):
    """Answers ``ReadClock``."""

    now: int
    """Microseconds since 1970, as all moments of the server's clock here."""
    zone: str
    """The session's time zone."""


class Claimed(NamedTuple):
    """Answers a claim that took its row."""

    now: int
    expires: int
    kind: str
    """The type of the column ``expire_at``."""


class Moved(NamedTuple):
    """Answers ``MoveExpiry``: how many rows were moved, and the row before the move (None: there is none)."""

    now: int
    moved: int
    holder: str | None
    ends: int | None


class Renewed(NamedTuple):
    """Answers ``RenewMany``, once for each lease that was renewed."""

    now: int
    number: int


class Sealed(NamedTuple):
    """Answers ``FreeAndSeal``: as ``Moved``, and the slot's rows written, its owner and its end before that."""

    now: int
    moved: int
    holder: str | None
    ends: int | None
    sealed: int
    slot_owner: str | None
    slot_ends: int | None


class Held(NamedTuple):
    """Answers ``Inspect``: who is named by each row, and until when; None without a row."""

    holder: str | None
    ends: int | None
    now: int
    slot_owner: str | None
    slot_ends: int | None


class GivenBack(NamedTuple):
    """Answers ``GiveBackSlot``, once for each row freed."""

    freed: int


#: Formatted with the table's quoted name. The statements are named tuples because such a class is made in a fifth of
#: the time that a frozen dataclass takes, and every start of the program makes all of them.
_TEMPLATES: dict[type, str] = {}


class ReadClock(NamedTuple):
    """The database's time and the session's zone: one ``Clock``."""


_TEMPLATES[ReadClock] = f"SELECT {SQL_NOW}, current_setting('TimeZone')"


class ClaimSlot(NamedTuple):
    """Takes the slot of ``tick`` until ``expires``: one ``Claimed``, or no row.

    A tick that lies a little ahead of the database's clock may be taken when the row ends by then.
    """

    key: str
    owner: str
    lock_timeout: str
    tick: int | None
    expires: int


_TEMPLATES[ClaimSlot] = f"""
    WITH {_SAFE}
    INSERT INTO {{table}} AS held (key, value, expire_at)
    SELECT %(key)s, %(owner)s, {sql_moment("expires")} FROM safe WHERE {sql_moment("expires")} > clock_timestamp()
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expire_at = excluded.expire_at
    WHERE held.expire_at <= GREATEST(clock_timestamp(), {sql_moment("tick")}) AND excluded.expire_at > clock_timestamp()
    RETURNING {SQL_NOW}, {sql_micros("expire_at")}, {_TYPE}"""


class ClaimLease(NamedTuple):
    """Takes the lease for ``ttl`` microseconds: one ``Claimed``, or no row."""

    key: str
    owner: str
    lock_timeout: str
    ttl: int


_TEMPLATES[ClaimLease] = f"""
    WITH {_SAFE}
    INSERT INTO {{table}} AS held (key, value, expire_at)
    SELECT %(key)s, %(owner)s, clock_timestamp() + %(ttl)s::float8 * interval '1 microsecond' FROM safe
    ON CONFLICT (key) DO UPDATE
    SET value = excluded.value, expire_at = clock_timestamp() + %(ttl)s::float8 * interval '1 microsecond'
    WHERE held.expire_at <= clock_timestamp()
    RETURNING {SQL_NOW}, {sql_micros("expire_at")}, {_TYPE}"""


class MoveExpiry(NamedTuple):
    """Renews or frees a lease: moves the row's end to ``expires`` if the row is still this very acquisition's.

    The row is ours if it names the owner, ends at a moment that we wrote (``known``) and has not ended yet. A row that
    already ends at ``expires`` was moved by this very statement, whose answer was lost. Always one ``Moved``.
    """

    key: str
    owner: str
    lock_timeout: str
    known: list[int]
    expires: int


# FreeAndSeal does the same to the row of the lease.
_MOVED = f"""moved AS (
        UPDATE {{table}} AS held SET expire_at = {sql_moment("expires")} FROM safe
        WHERE held.key = %(key)s AND held.value = %(owner)s
          AND (({sql_micros("held.expire_at")}) = ANY(%(known)s::bigint[]) AND held.expire_at > clock_timestamp()
               OR ({sql_micros("held.expire_at")}) = %(expires)s::bigint)
        RETURNING 1
    )"""
_TEMPLATES[MoveExpiry] = f"""
    WITH {_SAFE}, {_MOVED}
    SELECT {SQL_NOW}, (SELECT count(*) FROM moved), held.value, {sql_micros("held.expire_at")}
    FROM (SELECT) AS one LEFT JOIN {{table}} AS held ON held.key = %(key)s"""


class RenewMany(NamedTuple):
    """Renews many leases, each as its own ``MoveExpiry`` would: one ``Renewed`` for each that it moved.

    One row of the arrays says: if the row of ``keys`` names the owner and ends at ``ends``, it is the lease of that
    number, and ends at ``expires`` from now on. That a lease is not among the answers says nothing about it: a row that
    somebody has locked is passed over (``SKIP LOCKED``), so that it delays none of the others.
    """

    numbers: list[int]
    keys: list[str]
    owners: list[str]
    ends: list[int]
    expires: list[int]
    lock_timeout: str


# The condition is the one of MoveExpiry, with a row for each end that is known and one for an answer that was lost.
_TEMPLATES[RenewMany] = f"""
    WITH {_SAFE}, wanted AS (
        SELECT * FROM unnest(%(numbers)s::int[], %(keys)s::text[], %(owners)s::text[], %(ends)s::bigint[],
            %(expires)s::bigint[]) AS wanted (number, key, owner, ends, expires)
    ), ours AS MATERIALIZED (
        SELECT held.key, wanted.number, wanted.expires FROM safe, wanted JOIN {{table}} AS held ON held.key = wanted.key
        WHERE held.value = wanted.owner AND ({sql_micros("held.expire_at")}) = wanted.ends
          AND (held.expire_at > clock_timestamp() OR wanted.ends = wanted.expires)
        FOR UPDATE OF held SKIP LOCKED
    ), moved AS (
        UPDATE {{table}} AS held
        SET expire_at = timestamptz 'epoch' + ours.expires::float8 * interval '1 microsecond'
        FROM ours WHERE held.key = ours.key
        RETURNING ours.number
    )
    SELECT {SQL_NOW}, number FROM moved"""


class FreeAndSeal(NamedTuple):
    """Frees a lease as ``MoveExpiry`` does, and seals the slot of a run that succeeded: both, or neither.

    The slot's row gets the owner and ``slot_expires``, unless it ends later already. Always one ``Sealed``.
    """

    key: str
    owner: str
    lock_timeout: str
    known: list[int]
    expires: int
    slot_key: str
    slot_expires: int


# Only a statement that moved the lease's row seals: what it inserts comes from there.
_TEMPLATES[FreeAndSeal] = f"""
    WITH {_SAFE}, {_MOVED}, sealed AS (
        INSERT INTO {{table}} AS held (key, value, expire_at)
        SELECT %(slot_key)s, %(owner)s, {sql_moment("slot_expires")} FROM moved
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, expire_at = excluded.expire_at
        WHERE held.expire_at < excluded.expire_at
        RETURNING 1
    )
    SELECT {SQL_NOW}, (SELECT count(*) FROM moved), held.value, {sql_micros("held.expire_at")},
           (SELECT count(*) FROM sealed), slot.value, {sql_micros("slot.expire_at")}
    FROM (SELECT) AS one LEFT JOIN {{table}} AS held ON held.key = %(key)s
    LEFT JOIN {{table}} AS slot ON slot.key = %(slot_key)s"""


class GiveBackSlot(NamedTuple):
    """Frees a slot in which nothing was started, never to before its ``tick``: a ``GivenBack`` for each row freed."""

    key: str
    owner: str
    lock_timeout: str
    tick: int | None
    expires: int


_TEMPLATES[GiveBackSlot] = f"""
    WITH {_SAFE}
    UPDATE {{table}} AS held SET expire_at = GREATEST(clock_timestamp(), {sql_moment("tick")}) FROM safe
    WHERE held.key = %(key)s AND held.value = %(owner)s AND ({sql_micros("held.expire_at")}) = %(expires)s::bigint
    RETURNING 1"""


class Inspect(NamedTuple):
    """Who holds the row of ``key``, and who has the slot of ``slot_key`` (empty: none is asked for): one ``Held``."""

    key: str
    slot_key: str = ""


_TEMPLATES[Inspect] = f"""
    SELECT held.value, {sql_micros("held.expire_at")}, {SQL_NOW}, slot.value, {sql_micros("slot.expire_at")}
    FROM (SELECT) AS one LEFT JOIN {{table}} AS held ON held.key = %(key)s
    LEFT JOIN {{table}} AS slot ON slot.key = %(slot_key)s"""


Statement = ReadClock | ClaimSlot | ClaimLease | MoveExpiry | RenewMany | FreeAndSeal | GiveBackSlot | Inspect
#: Those that change nothing: that an answer to one was lost leaves nothing in doubt.
READS = (ReadClock, Inspect)
if TYPE_CHECKING:
    from dislock.protocol.advisory_statements import AdvisoryStatement

    AnyStatement = Statement | AdvisoryStatement
else:
    AnyStatement = Statement
Row = Clock | Claimed | Moved | Renewed | Sealed | GivenBack | Held


def template(statement: tuple[Any, ...]) -> str:
    """The statement's SQL, with ``{table}`` for the table's quoted name and ``%(field)s`` for each value."""
    # Statements of other modules know theirs.
    own = getattr(statement, "sql", None)
    return _TEMPLATES[type(statement)] if own is None else str(own())


_ROWS: dict[type, Callable[..., Any]] = {
    ReadClock: Clock,
    ClaimSlot: Claimed,
    ClaimLease: Claimed,
    MoveExpiry: Moved,
    RenewMany: Renewed,
    FreeAndSeal: Sealed,
    GiveBackSlot: GivenBack,
    Inspect: Held,
}


def add(kind: type, text: str, row: Callable[..., Any]) -> None:
    """Adds a statement of another module, with its template and its rows."""
    _TEMPLATES[kind] = text
    _ROWS[kind] = row


def rows_of(statement: tuple[Any, ...], fetched: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """The rows that a driver fetched, as the named tuples that answer the statement, if it has any."""
    row = _ROWS.get(type(statement))
    return tuple(tuple(columns) if row is None else row(*columns) for columns in fetched)
