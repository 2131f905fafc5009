"""The form of the two tables, columns, indexes and privileges: how they are created, and what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dislock.protocol.statements import add

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


def quoted(parts: Sequence[str]) -> str:
    """A table's name as it has to be written in SQL to mean itself."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


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


class Serialized(NamedTuple):
    """Answers ``SerializeInit``."""

    first: int


class SerializeInit(NamedTuple):
    """Lets one of several that create tables at one time go first."""


_SERIALIZE = "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('dislock --init', 0))"


TableQuestion = Form | Rights | SerializeInit
add(Form, _FORM, Column)
add(Rights, _RIGHTS, RightsRow)
add(SerializeInit, _SERIALIZE, Serialized)
