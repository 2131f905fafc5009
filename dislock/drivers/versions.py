"""The version of libpq, for ``--version``."""

from __future__ import annotations


def libpq() -> str:
    """The version of libpq, or "none": a program that cannot lock can still print its own version."""
    try:
        from psycopg import pq

        number = pq.version()
    except Exception:  # noqa: BLE001 - after any error there is no usable libpq
        return "none"
    return f"{number // 10000}.{number % 10000}"
