"""Fixtures that every kind of test shares."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.support.proxy import Proxy

KEY_VALUE = "CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--artifact",
        choices=("installed", "zipapp", "folder", "image"),
        default="installed",
        help="the command that tests/contract is run on",
    )


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A server that tests may fill with databases, roles and connections: TEST_DATABASE_URL, or an embedded one."""
    given = os.environ.get("TEST_DATABASE_URL", "").strip()
    if given:
        yield given
        return
    from tests.support.postgres import Postgres

    with Postgres() as server:
        yield server.url()


@pytest.fixture
def database_url(server_url: str) -> Iterator[str]:
    """A database of the test's own, with the documented table in it."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = psycopg.conninfo.make_conninfo(server_url, dbname=name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(KEY_VALUE)
        yield url
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A TCP proxy in front of the test's server: ``proxy.url(database_url)`` goes through it."""
    with Proxy.before(database_url) as between:
        yield between
