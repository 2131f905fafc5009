"""Reaching the database: hosts, deadlines, TLS."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLock,
    LockContext,
    LockNotAcquiredError,
    UnknownOutcomeError,
    acquire_locks,
    aio,
)
from tests.conftest import KEY_VALUE
from tests.integration.library.conftest import MakeContext
from tests.support.lookalike import Lookalike
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


class Names:
    """A name service of the test's own, for ``two.test``: its answers one after the other; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self._real = socket.getaddrinfo

    def look_up(self, host: str, port: str | None, **more: Any) -> list[Any]:
        if host != "two.test" or more.get("flags"):
            return self._real(host, port, **more)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [found for address in answer for found in self._real(address, port, **more)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, database_url: str) -> Iterator[Names]:
    """``two.test`` is a server that never says a word, and then the database."""
    names = Names(["127.0.0.2", "127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", int(str(conninfo_to_dict(database_url)["port"]))))
        listener.listen(50)
        yield names


def enter(context: LockContext, *, asynchronous: bool) -> int | None:
    """Takes a lease and frees it; its token."""
    if not asynchronous:
        with LeaseLock(context) as session:
            return session.fencing_token

    async def main() -> int | None:
        async with aio.LeaseLock(context) as session:
            return session.fencing_token

    return asyncio.run(main())


BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@BOTH_WAYS
def test_each_address_of_a_name_is_tried_while_there_is_time(
    make: MakeContext, database_url: str, names: Names, asynchronous: bool
) -> None:
    url = make_conninfo(database_url, host="two.test")
    assert enter(make(url=url, connect_timeout_seconds=4), asynchronous=asynchronous)


@BOTH_WAYS
def test_the_addresses_that_were_tried_are_named(
    make: MakeContext, database_url: str, names: Names, asynchronous: bool
) -> None:
    names.answers = [["127.0.0.2", "127.0.0.3"]]
    url = make_conninfo(database_url, host="two.test")
    words = r"two\.test:\d+ at 127\.0\.0\.2 did not answer in time; .*127\.0\.0\.3.*refused"
    with pytest.raises(DatabaseUnavailableError, match=words):
        enter(make(url=url, connect_timeout_seconds=1), asynchronous=asynchronous)


@BOTH_WAYS
def test_a_name_is_looked_up_anew_for_each_connection(
    make: MakeContext, database_url: str, names: Names, asynchronous: bool
) -> None:
    """A managed service moves its one name to the new primary."""
    # Nobody listens at the first one: it is refused.
    names.answers = [["127.0.0.3"], ["127.0.0.1"]]
    url = make_conninfo(database_url, host="two.test")
    assert enter(make(url=url, connect_timeout_seconds=20), asynchronous=asynchronous)


@BOTH_WAYS
def test_the_next_host_of_a_service_is_tried_while_there_is_time(
    make: MakeContext,
    database_url: str,
    mute: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asynchronous: bool,
) -> None:
    good = conninfo_to_dict(database_url)
    hosts = {"host": "127.0.0.1,127.0.0.1", "port": f"{mute},{good['port']}"}
    words = {**{key: good[key] for key in ("user", "password", "dbname") if key in good}, **hosts}
    (tmp_path / "services").write_text("[two]\n" + "".join(f"{key}={word}\n" for key, word in words.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert enter(make(url="service=two", connect_timeout_seconds=4), asynchronous=asynchronous)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"server_version": "11.22 (Debian 11.22-1)"},
            r"the server is PostgreSQL 11\.22 .*: dislock needs 12 or newer",
        ),
        ({"server_version": "8.0.2"}, r"the server is PostgreSQL 8\.0\.2: dislock needs 12 or newer"),
        ({"server_version": "13.0.0", "crdb_version": "CockroachDB CCL v23.2.0"}, "the server is CockroachDB, "),
        ({"server_version": "15.2-YB-2025.1.0.0-b0"}, "the server is YugabyteDB, .*: dislock needs PostgreSQL"),
    ],
)
def test_a_server_that_cannot_hold_a_lock_is_told_at_the_first_connection(
    make: MakeContext, said: dict[str, str], words: str, asynchronous: bool
) -> None:
    with Lookalike(said) as server, pytest.raises(ConfigurationError, match=words):
        enter(make(url=server.url), asynchronous=asynchronous)
    assert server.asked == b""


def test_aurora_dsql_is_told_by_its_name(make: MakeContext) -> None:
    with Lookalike({"server_version": "16.13"}) as server, pytest.raises(ConfigurationError, match="is Aurora DSQL, "):
        url = make_conninfo(server.url, host="foo.dsql.us-east-1.on.aws", hostaddr="127.0.0.1")
        enter(make(url=url), asynchronous=False)


@pytest.mark.parametrize("said", [{}, {"server_version": "12.0"}, {"server_version": "18.1 (Debian 18.1-1)"}])
def test_a_version_that_will_do_or_is_not_told_is_asked_for_a_lock(make: MakeContext, said: dict[str, str]) -> None:
    with Lookalike(said) as server, pytest.raises(UnknownOutcomeError):
        enter(make(url=server.url, connect_timeout_seconds=1), asynchronous=False)
    assert b"INSERT INTO" in server.asked


@pytest.mark.parametrize("host", ["db..internal", ".db.internal", "x" * 64 + ".internal"])
def test_a_host_that_no_host_can_be_called_is_told_and_passed_over(
    make: MakeContext, database_url: str, host: str
) -> None:
    """A part of it came from an empty variable, say."""
    with (
        pytest.raises(ConfigurationError, match="a host that cannot exist"),
        LeaseLock(make(url=f"host={host} dbname=d")),
    ):
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


def test_a_table_outside_the_search_path_is_not_only_to_be_made(make: MakeContext, database_url: str) -> None:
    url = make_conninfo(database_url, options="-c search_path=")
    with pytest.raises(ConfigurationError, match=r"a schema of this session's search_path: .* or name"):
        enter(make(url=url), asynchronous=False)
    assert enter(make(url=url, table_parts=["public", "key_value"]), asynchronous=False)


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
