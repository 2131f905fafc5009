"""TLS works from the file as from pip, whichever OpenSSL is bundled in the wheels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifact.support import Zipapp, one_line
from tests.support.contract import YEARLY
from tests.support.postgres import Postgres
from tests.support.tls import Authority, TlsServer, tls_server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    with tls_server() as running:
        yield running


@pytest.fixture
def job(zipapp: Zipapp, used_caches: Path, server: TlsServer) -> Zipapp:
    import psycopg

    from tests.conftest import KEY_VALUE

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS key_value")
        connection.execute(KEY_VALUE.encode())
    zipapp.environment |= {
        "XDG_CACHE_HOME": str(used_caches),
        "LOCK_KEY": "job",
        "CRON_SCHEDULE": YEARLY,
        "CRON_TZ": "UTC",
    }
    return zipapp


def test_verify_full_with_a_certificate_file(job: Zipapp, server: TlsServer) -> None:
    ran = job.run("DATABASE_URL", "echo", "ran", DATABASE_URL=server.url())
    assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")


def test_an_authority_that_is_not_the_servers(job: Zipapp, server: TlsServer, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Another")
    ran = job.run("DATABASE_URL", "echo", "ran", DATABASE_URL=server.url(sslrootcert=str(other.certificate)))
    one_line(ran, 2, "certificate")
    assert ran.out == ""


def test_system_means_the_hosts_own_bundle(job: Zipapp, server: TlsServer) -> None:
    # The host trusts the server's authority, by the variable that any OpenSSL follows.
    job.environment |= {"DATABASE_URL": server.url(sslrootcert="system"), "SSL_CERT_FILE": str(server.root)}
    ran = job.run("DATABASE_URL", "sh", "-c", "echo $SSL_CERT_FILE; env | grep -c SSL_")
    assert (ran.code, ran.out, ran.err) == (0, f"{server.root}\n1\n", "")


def test_system_does_not_trust_everybody(job: Zipapp, server: TlsServer) -> None:
    ran = job.run("DATABASE_URL", "echo", "ran", DATABASE_URL=server.url(sslrootcert="system"))
    one_line(ran, 2, "certificate")
    assert ran.out == ""


def test_names_are_verified(job: Zipapp, server: TlsServer) -> None:
    url = server.url(host="127.0.0.1")
    one_line(job.run("DATABASE_URL", "echo", "ran", DATABASE_URL=url), 2, "127.0.0.1")


def test_the_bundled_libpq_can_do_scram(job: Zipapp) -> None:
    """The embedded server asks for a password: hashing comes from the same OpenSSL."""
    with Postgres() as plain:
        import psycopg
        from psycopg.conninfo import make_conninfo

        with psycopg.connect(plain.url(), autocommit=True) as connection:
            connection.execute("CREATE ROLE tester LOGIN PASSWORD 'hush-hush'")
        hba = plain.data / "pg_hba.conf"
        hba.write_text("local all tester scram-sha-256\nlocal all all trust\nhost all tester samehost scram-sha-256\n")
        with psycopg.connect(plain.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        url = make_conninfo(plain.url(), user="tester", password="hush-hush")
        code = "import os, psycopg; print(psycopg.connect(os.environ['DATABASE_URL']).info.user)"
        assert job.python(code, DATABASE_URL=url) == "tester"
