"""The protocol's statements as psycopg's SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg import sql

from dislock.protocol.statements import AnyStatement, template

if TYPE_CHECKING:
    from dislock.protocol.questions import Question
    from dislock.protocol.records import Record


def compose(
    statement: AnyStatement | Record | Question, table_parts: Sequence[str], journal_parts: Sequence[str] = ()
) -> sql.Composed:
    """The SQL of a statement, with named placeholders for ``parameters``."""
    return sql.SQL(template(statement)).format(table=_name(table_parts), journal=_name(journal_parts))


def _name(parts: Sequence[str]) -> sql.Composable:
    # psycopg looks for placeholders in the finished text, also inside a quoted name.
    return sql.Identifier(*(part.replace("%", "%%") for part in parts)) if parts else sql.SQL("")


def parameters(statement: AnyStatement | Record | Question) -> dict[str, object]:
    """The values of the placeholders."""
    return statement._asdict()
