"""Reaching the database: hosts, deadlines, TLS."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from dislock import ConfigurationError, DatabaseUnavailableError, LeaseLock, LockNotAcquiredError, acquire_locks
from tests.conftest import KEY_VALUE
from tests.integration.library.conftest import MakeContext
from tests.support.proxy import Proxy
from tests.support.tls import TlsServer, tls_server

pytestmark = pytest.mark.integration


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that accepts and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield listener.getsockname()[1]


def test_a_server_that_never_answers_costs_the_time_limit_and_no_more(make: MakeContext, mute: int) -> None:
    ports = ",".join([str(mute)] * 3)
    url = f"host=127.0.0.1,127.0.0.1,127.0.0.1 port={ports} dbname=postgres"
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailableError, match="did not answer"):
        LeaseLock(make(url=url, connect_timeout_seconds=0.6)).__enter__()
    # libpq alone would take two seconds at least for each of the hosts.
    assert time.monotonic() - started < 2


def test_the_next_host_is_tried_while_there_is_time(make: MakeContext, database_url: str, mute: int) -> None:
    port = psycopg.conninfo.conninfo_to_dict(database_url)["port"]
    url = make_conninfo(database_url, host="127.0.0.1,127.0.0.1", port=f"{mute},{port}")
    with LeaseLock(make(url=url, connect_timeout_seconds=4)) as session:
        assert session.fencing_token


@pytest.mark.parametrize("host", ["db..internal", ".db.internal", "x" * 64 + ".internal"])
def test_a_host_that_no_host_can_be_called_is_told_and_passed_over(
    make: MakeContext, database_url: str, host: str
) -> None:
    """A part of it came from an empty variable, say."""
    with pytest.raises(ConfigurationError, match="no host can be called"), LeaseLock(make(url=f"host={host} dbname=d")):
        pytest.fail("entered")
    good = psycopg.conninfo.conninfo_to_dict(database_url)
    with LeaseLock(make(url=psycopg.conninfo.make_conninfo(database_url, host=f"{host},{good['host']}"))):
        pass


def test_a_refused_connection_is_tried_again(make: MakeContext, database_url: str, proxy: Proxy) -> None:
    import threading

    proxy.refuse()
    threading.Timer(0.5, proxy.resume).start()
    with LeaseLock(make(url=proxy.url(database_url))) as session:
        assert session.fencing_token


def test_a_missing_table_says_how_to_make_it(make: MakeContext) -> None:
    with pytest.raises(ConfigurationError, match=r"CREATE TABLE nowhere \(key text PRIMARY KEY"):
        LeaseLock(make(table_parts=["nowhere"])).__enter__()


def test_a_table_without_its_unique_key_is_told_apart(make: MakeContext, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE loose (key text, value text, expire_at timestamptz)")
        connection.execute("CREATE TABLE other (key text PRIMARY KEY)")
        connection.execute("CREATE TABLE narrow (key varchar(5) PRIMARY KEY, value text, expire_at timestamptz)")
    for table, words in (
        ("loose", "not unique"),
        ("other", "lacks a column"),
        ("narrow", "table narrow is too narrow"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            LeaseLock(make(table_parts=[table])).__enter__()


@pytest.mark.parametrize("kind", ["timestamp", "date", "timestamptz(0)"])
def test_a_table_whose_moments_mean_something_else_is_refused(make: MakeContext, database_url: str, kind: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE loose (key text PRIMARY KEY, value text, expire_at {kind})".encode())
        for strategy in ("schedule", "lease"):
            with pytest.raises(ConfigurationError, match="needs expire_at timestamptz"):
                acquire_locks(make(table_parts=["loose"], schedule="* * * * *"), [strategy]).__enter__()


def test_the_advice_for_a_missing_table_works_as_printed(make: MakeContext, database_url: str) -> None:
    context = make(table_parts=["public", 'Odd "name'])
    with pytest.raises(ConfigurationError) as caught:
        LeaseLock(context).__enter__()
    advice = str(caught.value)
    create = advice[advice.index("CREATE TABLE") : advice.rindex(")") + 1]
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(create.encode())
    with LeaseLock(make(table_parts=["public", 'Odd "name'])) as session:
        assert session.fencing_token


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    with tls_server() as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
        yield server


def test_verify_full_with_a_certificate_file(make: MakeContext, tls: TlsServer) -> None:
    with LeaseLock(make(url=tls.url(), lock_key="file")) as session:
        assert session.fencing_token
    with pytest.raises((DatabaseUnavailableError, ConfigurationError)):
        LeaseLock(make(url=tls.url(host="127.0.0.1"), connect_timeout_seconds=1)).__enter__()


def test_verify_full_with_the_hosts_own_certificates(
    make: MakeContext, tls: TlsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.root))
    with LeaseLock(make(url=tls.url(sslrootcert="system"), lock_key="system")) as session:
        assert session.fencing_token
    # The same way with authorities that do not know this server.
    empty: Any = tmp_path / "other.crt"
    empty.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(empty))
    with pytest.raises((DatabaseUnavailableError, ConfigurationError)):
        LeaseLock(make(url=tls.url(sslrootcert="system"), connect_timeout_seconds=1)).__enter__()


def test_hostile_settings_of_the_role_do_not_matter(make: MakeContext, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS hostile")
        admin.execute("CREATE ROLE hostile LOGIN")
        admin.execute("GRANT SELECT, INSERT, UPDATE ON key_value TO hostile")
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "lock_timeout = '1ms'",
            "idle_in_transaction_session_timeout = '1ms'",
            "synchronous_commit = 'off'",
            "DateStyle = 'SQL, DMY'",
            "IntervalStyle = 'sql_standard'",
            "TimeZone = '<+03>-03'",
            "search_path = 'public'",
            "standard_conforming_strings = 'off'",
        ):
            admin.execute(f"ALTER ROLE hostile SET {setting}".encode())
    try:
        url = make_conninfo(database_url, user="hostile")
        with LeaseLock(make(url=url, lease_interval_seconds=0.05)) as session:
            assert session.fencing_token
            with pytest.raises(LockNotAcquiredError):
                LeaseLock(make(url=url, owner="host:2")).__enter__()
    finally:
        with psycopg.connect(database_url, autocommit=True) as admin:
            admin.execute("DROP OWNED BY hostile")
            admin.execute("DROP ROLE hostile")
