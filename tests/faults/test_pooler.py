"""PgBouncer between us and the server, in each of its modes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.conftest import BOTH, LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.pgbouncer import PgBouncer
from tests.support.wait import until

pytestmark = pytest.mark.integration
MODES = ["session", "transaction", "statement"]


@pytest.fixture(params=MODES)
def pooler(request: pytest.FixtureRequest, database_url: str) -> Iterator[PgBouncer]:
    # One server connection for all clients where the mode allows it: state left behind would be seen by the next.
    size = 4 if request.param == "session" else 1
    with PgBouncer(database_url, request.param, {"default_pool_size": size}) as between:
        yield between


def test_both_locks_are_taken_kept_refused_and_freed(
    start: Start, database_url: str, table: Table, pooler: PgBouncer
) -> None:
    url = pooler.url(database_url)
    run = start(url, BOTH, {"RUN_LOCK_TTL_SECONDS": 20}).up()
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal")
    for settings in (SLOT, LEASE):
        refused = start(url, settings)
        assert refused.ended() == (0, "")
        assert not refused.started
    assert run.tell(3).ended() == (3, "")
    assert set(table.live()) == {"schedule"}


def test_a_loss_is_noticed_through_it(start: Start, database_url: str, table: Table, pooler: PgBouncer) -> None:
    run = start(pooler.url(database_url), LEASE, {"RUN_LOCK_TTL_SECONDS": 60}).up()
    table.ask("UPDATE key_value SET value = 'thief:1'")
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert not alive(run.command)
    assert table.live() == {"lease": "thief:1"}


def test_nothing_that_we_set_stays_behind(start: Start, database_url: str, pooler: PgBouncer) -> None:
    """``lock_timeout`` and ``synchronous_commit`` are set for one statement: the next client must not inherit them."""
    import psycopg

    run = start(pooler.url(database_url), LEASE, {"RUN_LOCK_TTL_SECONDS": 20}).up()
    assert run.tell().ended() == (0, "")
    with psycopg.connect(pooler.url(database_url), autocommit=True, prepare_threshold=None) as connection:
        row = connection.execute(
            "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit'),"
            " (SELECT count(*) FROM pg_prepared_statements)"
        ).fetchone()
    assert row == ("0", "on", 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"dbname": "nowhere"}, "no such database"),
        ({"password": "wrong"}, "SASL authentication failed"),
        ({"options": "-c work_mem=1MB"}, "unsupported startup parameter"),
    ],
)
def test_what_it_refuses_for_good_is_asked_once(
    start: Start, database_url: str, wrong: dict[str, str], words: str
) -> None:
    name = conninfo_to_dict(database_url)["dbname"]
    settings = {"ignore_startup_parameters": "extra_float_digits"}
    with PgBouncer(database_url, settings=settings, database=str(name), users={"app": "right"}) as pooler:
        url = pooler.url(make_conninfo(database_url, **{"user": "app", "password": "right", **wrong}))
        run = start(url, LEASE)
        code, err = run.ended()
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert pooler.log.count(f"pooler error: {words}") == 1
    assert not run.started


def test_no_server_connection_to_be_had_is_one_line_and_1(start: Start, database_url: str) -> None:
    import psycopg

    settings = {"default_pool_size": 1, "query_wait_timeout": 100}
    with PgBouncer(database_url, "session", settings) as pooler, psycopg.connect(pooler.url(database_url)) as guest:
        guest.execute("SELECT 1")
        run = start(pooler.url(database_url), LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 1})
        code, err = run.ended()
        assert (code, err.count("\n")) == (1, 1)
        assert not run.started
