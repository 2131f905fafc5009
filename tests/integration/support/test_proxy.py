"""The proxy that fault tests rely on does what it says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.postgres import free_port
from tests.support.proxy import Proxy
from tests.support.wait import until

pytestmark = pytest.mark.integration

INSERT = "INSERT INTO key_value VALUES ('k', 'v', now())"


@pytest.fixture
def through(proxy: Proxy, database_url: str) -> Iterator[psycopg.Connection]:
    with contextlib.closing(psycopg.connect(proxy.url(database_url), autocommit=True)) as connection:
        yield connection


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM key_value").fetchone()
        assert row is not None
        return int(row[0])


def sends(connection: psycopg.Connection, statement: str) -> tuple[threading.Thread, list[BaseException | None]]:
    """Carries out a statement in a thread; the list has its error, or None, when it is over."""
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            connection.execute(statement)
            outcome.append(None)
        except psycopg.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_forwards_and_counts(proxy: Proxy, database_url: str) -> None:
    size = 3_000_000
    with psycopg.connect(proxy.url(database_url)) as one, psycopg.connect(proxy.url(database_url)):
        assert one.execute("SELECT length(%s), repeat('x', %s)", ["y" * size, size]).fetchone() == (size, "x" * size)
        assert (proxy.accepted, proxy.open) == (2, 2)
    until(lambda: not proxy.open, what="the end of both connections")
    assert proxy.accepted == 2


def test_delay_holds_each_way_back(proxy: Proxy, through: psycopg.Connection) -> None:
    proxy.delay(0.2)
    began = time.monotonic()
    through.execute("SELECT 1")
    assert 0.4 <= time.monotonic() - began < 2
    proxy.resume()
    began = time.monotonic()
    through.execute("SELECT 1")
    assert time.monotonic() - began < 0.2


def test_cut_resets(proxy: Proxy, through: psycopg.Connection, database_url: str) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        until(lambda: proxy.open == 2)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            plain.recv(1)
    with pytest.raises(psycopg.OperationalError):
        through.execute("SELECT 1")
    with psycopg.connect(proxy.url(database_url)) as fresh:
        fresh.execute("SELECT 1")


def test_new_connections_are_led_to_another_server_and_open_ones_stay(
    proxy: Proxy, through: psycopg.Connection
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        proxy.lead_to(other.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
            accepted, _ = other.accept()
            with accepted:
                accepted.sendall(b"other")
                assert plain.recv(5) == b"other"
        through.execute("SELECT 1")


def test_wedge_moves_no_byte_until_resumed(proxy: Proxy, through: psycopg.Connection, database_url: str) -> None:
    proxy.wedge()
    thread, outcome = sends(through, INSERT)
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        plain.settimeout(0.3)
        plain.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")  # asks for TLS, which any server answers at once
        with pytest.raises(TimeoutError):
            plain.recv(1)
    assert rows(database_url) == 0
    assert not outcome
    proxy.resume()
    thread.join(timeout=5)
    assert outcome == [None]
    assert rows(database_url) == 1


def test_swallowed_answers_do_not_undo_the_statement(
    proxy: Proxy, through: psycopg.Connection, database_url: str
) -> None:
    proxy.swallow_answers()
    thread, outcome = sends(through, INSERT)
    until(lambda: rows(database_url))
    thread.join(timeout=0.2)
    assert not outcome
    proxy.cut()
    thread.join(timeout=5)
    assert isinstance(outcome[0], psycopg.OperationalError)


@pytest.mark.parametrize("then_cut", [True, False])
def test_the_answer_to_one_statement_is_lost(
    proxy: Proxy, through: psycopg.Connection, database_url: str, then_cut: bool
) -> None:
    lost = proxy.lose_answer(b"INSERT INTO key_value", then_cut=then_cut)
    through.execute("SELECT 1")
    thread, outcome = sends(through, INSERT)
    assert lost.wait(timeout=5)
    assert rows(database_url) == 1
    with psycopg.connect(proxy.url(database_url)) as other:
        other.execute("DELETE FROM key_value")
    if not then_cut:
        thread.join(timeout=0.2)
        assert not outcome
        proxy.cut()
    thread.join(timeout=5)
    assert isinstance(outcome[0], psycopg.OperationalError)


def test_half_close_ends_what_the_client_reads_and_not_what_it_writes(
    proxy: Proxy, through: psycopg.Connection, database_url: str
) -> None:
    del through
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        until(lambda: proxy.open == 2)
        proxy.half_close()
        assert plain.recv(1) == b""
        plain.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
        assert proxy.open == 2


def test_refuse_spares_open_connections(proxy: Proxy, through: psycopg.Connection, database_url: str) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))
    through.execute("SELECT 1")
    proxy.resume()
    with psycopg.connect(proxy.url(database_url)) as fresh:
        fresh.execute("SELECT 1")


def test_a_server_that_is_gone_is_a_reset() -> None:
    with Proxy("127.0.0.1", free_port()) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as plain, pytest.raises(ConnectionResetError):
            plain.recv(1)
        assert not proxy.open
