"""The examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pg_advisory_lock import advisory_key
from tests.integration.advisory.actors import sqlalchemy_url

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def database(conninfo: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS account")
        connection.execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
        connection.execute("INSERT INTO account VALUES (7, 100)")
        yield connection


def run(name: str, conninfo: str, *arguments: str, driver: str = "psycopg") -> subprocess.CompletedProcess[str]:
    url = sqlalchemy_url(conninfo, driver).render_as_string(hide_password=False)
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "DATABASE_URL": url},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def balance(database: psycopg.Connection) -> int:
    row = database.execute("SELECT balance FROM account WHERE id = 7").fetchone()
    assert row is not None
    return int(row[0])


def test_payment(conninfo: str, database: psycopg.Connection) -> None:
    assert run("advisory_payment.py", conninfo, "7", "60").stdout == "charged\n"
    assert run("advisory_payment.py", conninfo, "7", "60").stdout == "not enough money\n"
    assert balance(database) == 40
    database.execute("SELECT pg_advisory_lock(%s::bigint)", [advisory_key(["accounts", 7])])
    busy = run("advisory_payment.py", conninfo, "7", "10")
    assert busy.returncode == 1
    assert f"pid {database.info.backend_pid} " in busy.stderr
    assert balance(database) == 40


def test_only_one_worker(conninfo: str, database: psycopg.Connection) -> None:
    assert run("advisory_only_one_worker.py", conninfo, "nightly").stdout == "done\n"
    database.execute("SELECT pg_advisory_lock(%s::bigint)", [advisory_key(["only_one_worker", "nightly"])])
    taken = run("advisory_only_one_worker.py", conninfo, "nightly")
    assert taken.stdout == f"taken by {database.info.backend_pid}\n"
    assert balance(database) == 101


def test_readers_and_writer(conninfo: str, database: psycopg.Connection) -> None:
    done = run("advisory_readers_and_writer.py", conninfo)
    assert done.stdout.splitlines() == ["two read", "not changed: somebody reads", "changed"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_asyncio(conninfo: str, database: psycopg.Connection, driver: str) -> None:
    done = run("advisory_asyncio.py", conninfo, "7", driver=driver)
    assert done.stdout == "balance 120\n", done.stderr


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("advisory_*.py"))
