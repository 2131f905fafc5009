"""What the server said, whatever the driver calls it."""

from __future__ import annotations

#: "canceling statement due to lock timeout"; NOWAIT has the same state, but nothing here uses that.
LOCK_NOT_AVAILABLE = "55P03"


def sqlstate(error: Exception) -> str | None:
    """The five characters of a driver's error, as SQLAlchemy wraps it; None when it has none.

    An engine's ``handle_error`` event may put another exception in the place of SQLAlchemy's; it keeps the driver's as
    its cause.
    """
    original = getattr(error, "orig", None) or error.__cause__
    # psycopg and asyncpg (through SQLAlchemy's adapter) say sqlstate, psycopg2 pgcode.
    for name in ("sqlstate", "pgcode"):
        state = getattr(original, name, None)
        if isinstance(state, str):
            return state
    # pg8000 has the fields of the server's message as a dict: C is the code.
    fields = original.args[0] if isinstance(original, Exception) and original.args else None
    state = fields.get("C") if isinstance(fields, dict) else None
    return state if isinstance(state, str) else None
