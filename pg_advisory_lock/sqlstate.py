"""The server's error code, whatever the driver calls it."""

from __future__ import annotations

from collections.abc import Iterator

#: "canceling statement due to lock timeout". NOWAIT has the same state, but nothing here uses NOWAIT.
LOCK_NOT_AVAILABLE = "55P03"

#: An administrator, a crash, an idle or a transaction timeout has ended the session: the server sends one of these and
#: closes the connection. Not every driver reports that to SQLAlchemy.
_ENDS_CONNECTION = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})


def ends_connection(error: BaseException) -> bool:
    """Whether the error says that the connection is gone."""
    state = sqlstate(error) or ""
    return state in _ENDS_CONNECTION or state.startswith("08")


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of the driver's error behind this one; None if it has none."""
    return next((state for cause in causes(error) if (state := _state(cause))), None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it wraps, and so on.

    SQLAlchemy keeps the driver's error as ``orig`` and as the cause. An engine's ``handle_error`` event may replace
    SQLAlchemy's error by another one, which keeps either of the two in either way.
    """
    seen: list[BaseException] = []
    found: list[object] = [error]
    while found:
        cause = found.pop(0)
        # A chain can contain a loop.
        if isinstance(cause, BaseException) and not any(cause is other for other in seen):
            yield cause
            seen.append(cause)
            found += (getattr(cause, "orig", None), cause.__cause__)


def _state(error: BaseException) -> str | None:
    # psycopg and asyncpg (through SQLAlchemy's adapter) have sqlstate, psycopg2 has pgcode.
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    # pg8000 has the fields of the server's message as a dict: C is the code.
    fields = error.args[0] if error.args else None
    state = fields.get("C") if isinstance(fields, dict) else None
    return state if isinstance(state, str) else None
