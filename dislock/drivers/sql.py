"""The protocol's statements as psycopg's SQL."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from dislock.protocol.statements import AnyStatement, template


def compose(statement: AnyStatement, table_parts: Sequence[str]) -> sql.Composed:
    """The SQL of a statement, with named placeholders for ``parameters``."""
    # psycopg looks for placeholders in the finished text, also within a quoted name.
    table = sql.Identifier(*(part.replace("%", "%%") for part in table_parts))
    return sql.SQL(template(statement)).format(table=table)


def parameters(statement: AnyStatement) -> dict[str, object]:
    """What the placeholders stand for."""
    return statement._asdict()
