"""Contexts on a fresh database, and a look at its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import psycopg
import pytest

from dislock import LockContext


class MakeContext(Protocol):
    def __call__(self, **changes: Any) -> LockContext: ...


@pytest.fixture
def make(database_url: str) -> MakeContext:
    """A context for both strategies on the test's database; keywords change it."""

    def build(**changes: Any) -> LockContext:
        values = {
            "url": database_url,
            "table_parts": ["key_value"],
            "lock_key": "job",
            "owner": "host:1",
            "schedule": "0 0 1 1 *",
            "run_ttl_seconds": 30.0,
            "lease_interval_seconds": 5.0,
        }
        return LockContext(**{**values, **changes})

    return build


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def live(db: psycopg.Connection[Any]) -> Callable[[], set[str]]:
    """The kinds of the rows that somebody holds now."""

    def look() -> set[str]:
        rows = db.execute("SELECT split_part(key, ':', 2) FROM key_value WHERE expire_at > clock_timestamp()")
        return {kind for (kind,) in rows}

    return look


@pytest.fixture
def connections(db: psycopg.Connection[Any]) -> Callable[[], int]:
    """How many connections of locks the server has for this database."""

    def count() -> int:
        row = db.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'dislock%'"
        ).fetchone()
        return int(row[0]) if row else 0

    return count
