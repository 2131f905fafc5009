"""The servers that tests rely on: throw-away, counted, with TLS, and in pairs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from build.common import postgres
from ci.environments import ROOT
from tests.support import statements
from tests.support.postgres import Postgres
from tests.support.replicas import Pair
from tests.support.tls import Authority, TlsServer, tls_server
from tests.support.wait import until

pytestmark = pytest.mark.integration


def test_a_server_goes_without_a_trace_even_when_it_was_stopped() -> None:
    with Postgres() as server:
        processes = server.processes()
        with psycopg.connect(server.url()):
            pass
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
    # Its parent is gone too, and not every process 1 collects the dead.
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert not server.data.exists()


def test_a_server_takes_another_port_when_its_own_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = postgres.free_port()
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(postgres, "free_port", lambda: next(ports))
        with Postgres() as server:
            assert server.port == free
            psycopg.connect(server.url()).close()


def test_a_restart_keeps_port_and_data() -> None:
    with Postgres() as server:
        url = server.url()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept ()")
        server.restart("fast")
        assert server.url() == url
        with psycopg.connect(url) as connection:
            connection.execute("SELECT FROM kept")


def test_a_socket_has_a_short_path_where_the_folder_has_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="x" * 80) as folder:
        long = Path(folder)
        # The server's account has to pass, which it may not in pytest's own folders.
        long.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with Postgres() as server:
            assert server.data.is_relative_to(long)
            psycopg.connect(f"host={server.socket_folder} port={server.port} user=postgres").close()
        assert not server.socket_folder.exists()


def test_statements_and_connections_are_counted() -> None:
    with Postgres(statements.SETTINGS) as server:
        psycopg.connect(server.url()).close()
        with statements.watch(server, "postgres") as traffic:
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute("SELECT\n  1")
                connection.execute("SELECT %s::int", [2])
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(server.url("missing"))
            psycopg.connect(server.url("template1")).close()
    assert traffic.statements == ["SELECT 1", "SELECT $1::int"]
    assert len(set(traffic.backends)) == 1
    assert traffic.connections == 1
    assert traffic.attempts == 3


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    with tls_server() as server:
        yield server


def test_tls_verifies_the_name_and_the_authority(tls: TlsServer, tmp_path: Path) -> None:
    with psycopg.connect(tls.url()) as connection:
        row = connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
        assert row == (True,)
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(tls.url(host="127.0.0.1"))
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(tls.url(sslrootcert=str(Authority(tmp_path, "Another").certificate)))


def test_a_connection_without_tls_is_refused(tls: TlsServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(tls.url(sslmode="disable"))


def test_a_standby_follows_and_is_promoted() -> None:
    with Pair(synchronous=True) as pair:
        with psycopg.connect(pair.url(), autocommit=True) as connection:
            assert connection.info.port == pair.primary.port
            connection.execute("CREATE TABLE followed ()")
        pair.catch_up()
        with (
            psycopg.connect(pair.standby.url(), autocommit=True) as connection,
            pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        ):
            connection.execute("DROP TABLE followed")
        pair.primary.stop()
        pair.standby.promote()
        with psycopg.connect(pair.url(), autocommit=True) as connection:
            assert connection.info.port == pair.standby.port
            connection.execute("DROP TABLE followed")


LEFT_ALONE = """
import os, signal
from tests.support.postgres import Postgres
server = Postgres().__enter__()
print(server.pid, server.data, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_does_not_outlive_killed_tests() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_ALONE], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid, data = done.stdout.split()
    until(lambda: not Path(data).parent.exists(), what="the end of the server's folder")
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
