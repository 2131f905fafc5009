"""Databases and roles with an encoding of the last century."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import KEY_VALUE
from tests.faults.conftest import LEASE, SLOT, Start
from tests.support.postgres import Postgres

pytestmark = pytest.mark.integration

#: PostgreSQL's name of an encoding, a lock key that fits it, a holder's name that somebody else wrote in it, and what
#: is said of that one. Bytes that mean nothing are not to be had from the server.
ENCODINGS = [
    pytest.param("SQL_ASCII", "Zinsläufe €", b"h\xe4nde:\xff", "invalid byte sequence", id="any-bytes"),
    pytest.param("LATIN1", "Zinsläufe", b"h\xe4nde:1", "is held by hände:1 ", id="latin1"),
    pytest.param("EUC_JP", "利息計算", "手:1".encode("euc_jp"), "is held by 手:1 ", id="euc-jp"),
]


@pytest.mark.parametrize(("encoding", "key", "stored", "shown"), ENCODINGS)
def test_an_old_database_is_one_as_any_other(
    start: Start, server: Postgres, encoding: str, key: str, stored: bytes, shown: str
) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE old TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        # What a program in one of these encodings would want.
        connection.execute("ALTER ROLE app SET client_encoding = 'LATIN1'")
    with psycopg.connect(server.url("old"), autocommit=True, client_encoding=encoding) as connection:
        connection.execute(KEY_VALUE)
        connection.execute("GRANT SELECT, INSERT, UPDATE ON key_value TO app")
    url = server.url("old", user="app")
    run = start(url, LEASE, {"LOCK_KEY": key}).up()
    assert start(url, LEASE, {"LOCK_KEY": key}).ended() == (0, "")
    assert run.tell().ended() == (0, "")
    assert start(url, SLOT, {"LOCK_KEY": key}).up().tell().ended() == (0, "")

    with psycopg.connect(server.url("old"), autocommit=True, client_encoding=encoding) as connection:
        connection.execute(
            "UPDATE key_value SET value = convert_from(%b, getdatabaseencoding()), "
            " expire_at = clock_timestamp() + interval '1 minute'",
            [stored],
        )
    refused = start(url, LEASE, {"LOCK_KEY": key, "CRONJOB_LOCK_LOG_LEVEL": "INFO"})
    code, err = refused.ended()
    # What nobody can read proves no holder.
    assert (code, err.count("\n")) == (2 if encoding == "SQL_ASCII" else 0, 1)
    assert shown in err
    assert not refused.started


def test_a_key_that_the_database_cannot_hold_is_said_to_be_so(start: Start, server: Postgres) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE old TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with psycopg.connect(server.url("old"), autocommit=True) as connection:
        connection.execute(KEY_VALUE)
    refused = start(server.url("old"), LEASE, {"LOCK_KEY": "利息計算"})
    code, err = refused.ended()
    assert (code, err.count("\n")) == (2, 1)
    assert "LATIN1" in err
    assert not refused.started
