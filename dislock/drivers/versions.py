"""Which libpq carries the statements out, for ``--version``."""

from __future__ import annotations


def libpq() -> str:
    """Its version, or that there is none: a program that cannot lock can still say what it is."""
    try:
        from psycopg import pq

        number = pq.version()
    except Exception:  # noqa: BLE001 - whatever keeps it from being loaded, it is not there
        return "none"
    return f"{number // 10000}.{number % 10000}"
