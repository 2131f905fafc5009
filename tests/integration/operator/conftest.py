"""The operator's commands as processes, on a database with a journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from tests.support.contract import Dislock, bare, dislock, lease

__all__ = ["bare", "dislock", "lease"]

#: Records a run and returns its id; columns that are not given are those of a success a minute ago.
Record = Callable[..., int]


@pytest.fixture
def operator(bare: Dislock, database_url: str) -> Dislock:
    """The command under test with a database and a journal, in an environment without the settings of a run."""
    bare.url = database_url
    bare.environment |= {"DATABASE_URL": database_url, "LOCK_JOURNAL": "runs"}
    ran = bare.run("--init", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    return bare


@pytest.fixture
def record(operator: Dislock) -> Record:
    def insert(**columns: Any) -> int:
        now = datetime.now(timezone.utc)
        values = {
            "key": "report",
            "strategy": "lease",
            "owner": "host7:4711",
            "command": "report 0a1b2c",
            "started_at": now - timedelta(minutes=2),
            "ended_at": now - timedelta(minutes=1),
            "exit_code": 0,
            "outcome": "success",
            **columns,
        }
        names = ", ".join(values)
        marks = ", ".join(f"%({name})s" for name in values)
        with psycopg.connect(operator.url, autocommit=True) as connection:
            row = connection.execute(f"INSERT INTO runs ({names}) VALUES ({marks}) RETURNING id".encode(), values)
            return int(row.fetchall()[0][0])

    return insert
