"""Fixtures of the advisory locks' tests on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.integration.advisory.actors import Actor
from tests.integration.advisory.observer import Observer

Enter = Callable[..., Actor]


@pytest.fixture(scope="session")
def advisory_database(server_url: str) -> Iterator[str]:
    """One database for all of these tests: to make one for each would take longer than the tests."""
    name = f"advisory_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = psycopg.conninfo.make_conninfo(server_url, dbname=name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE payment (id int PRIMARY KEY, note text)")
        yield url
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def conninfo(advisory_database: str) -> str:
    """The database, with one row in its table of payments and without any lock."""
    with psycopg.connect(advisory_database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("TRUNCATE payment")
        connection.execute("INSERT INTO payment VALUES (0, 'first')")
    return advisory_database


@pytest.fixture
def way() -> str:
    """How a test locks that no driver decides; a test that a driver decides names its own ways."""
    return "psycopg-session"


@pytest.fixture
def driver(way: str) -> str:
    return way.partition("-")[0]


@pytest.fixture
def enter(conninfo: str) -> Iterator[Enter]:
    """``enter(way)`` brings in an actor, who is sent home at the end."""
    with ExitStack() as stack:

        def enter(way: str = "psycopg-session", **arguments: Any) -> Actor:
            actor = Actor(arguments.pop("conninfo", conninfo), way, **arguments)
            stack.callback(actor.close)
            return actor

        yield enter


@pytest.fixture
def observer(conninfo: str) -> Iterator[Observer]:
    """Sees and stops what the others do, from outside."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield Observer(connection)


@pytest.fixture
def meanwhile() -> Iterator[Callable[..., Future[Any]]]:
    """``meanwhile(function, *args)`` runs it in a thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit
