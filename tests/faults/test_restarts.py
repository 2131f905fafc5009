"""A server that restarts, ends our connection, freezes, or is away for longer than a lease."""

from __future__ import annotations

from functools import partial

import psutil
import psycopg
import pytest

from tests.faults.conftest import BOTH, LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.wait import until

pytestmark = pytest.mark.integration
#: Long enough for a server to come back on a busy machine.
LONG = {**LEASE, "RUN_LOCK_TTL_SECONDS": 30}


def test_an_immediate_restart_is_survived_in_silence(start: Start, server: Postgres, own_table: Table) -> None:
    run = start(server.url(), LONG).up()
    end = own_table.ends()
    server.restart("immediate")
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal after the restart")
    assert run.tell(5).ended() == (5, "")
    assert own_table.live() == {}


def test_a_server_that_stays_away_ends_the_command_before_the_row(
    start: Start, server: Postgres, own_table: Table
) -> None:
    run = start(server.url(), LEASE).up()
    server.stop("immediate")
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "no renewal was confirmed in time" in err
    assert not alive(run.command)
    server.start()
    until(lambda: not own_table.live(), PATIENCE, "the end of the row")


def test_a_server_that_comes_back_while_a_start_is_tried(start: Start, server: Postgres, own_table: Table) -> None:
    server.stop("immediate")
    run = start(server.url(), BOTH, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
    until(lambda: psutil.Process(run.pid).num_threads() > 1, PATIENCE, "the first try")
    server.start()
    assert run.up().tell().ended() == (0, "")


def test_a_server_that_is_away_at_exit_is_a_warning_and_the_commands_code(start: Start, server: Postgres) -> None:
    run = start(server.url(), LONG).up()
    server.stop("immediate")
    code, err = run.tell(6).ended()
    assert (code, err.count("\n")) == (6, 1)
    assert "could not be freed" in err


def test_connections_that_are_terminated_are_replaced_in_silence(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LONG).up()
    for _ in range(3):
        (backend,) = until(table.backends, what="a connection")
        table.ask("SELECT pg_terminate_backend(%s)", backend)
        end = table.ends()
        until(partial(table.renewed, end), PATIENCE, "a renewal on another connection")
    assert run.tell().ended() == (0, "")
    assert table.live() == {}


def test_a_frozen_backend_is_left_behind(start: Start, server: Postgres, own_table: Table) -> None:
    run = start(server.url(), LONG, {"RUN_LOCK_TTL_SECONDS": 15}).up()
    (backend,) = until(own_table.backends, what="a connection")
    frozen = psutil.Process(backend)
    end = own_table.ends()
    frozen.suspend()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal on another connection")
    # What was sent to it is carried out now, late: it must move nothing.
    frozen.resume()
    until(lambda: backend not in own_table.backends(), PATIENCE, "the end of the late connection")
    end = own_table.ends()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal after that")
    assert run.tell().ended() == (0, "")
    assert own_table.live() == {}


def test_a_frozen_backend_that_wakes_after_the_lease_was_freed(
    start: Start, server: Postgres, own_table: Table
) -> None:
    """A late renewal must not bring a freed row back to life, nor take it from the next holder."""
    run = start(server.url(), LONG, {"RUN_LOCK_TTL_SECONDS": 15}).up()
    (backend,) = until(own_table.backends, what="a connection")
    frozen = psutil.Process(backend)
    frozen.suspend()
    until(lambda: len(own_table.backends()) > 1, PATIENCE, "another connection")
    assert run.tell().ended() == (0, "")
    second = start(server.url(), LONG).up()
    frozen.resume()
    until(lambda: backend not in own_table.backends(), PATIENCE, "the end of the late connection")
    assert own_table.live() == {"lease": second.told["DISLOCK_OWNER"]}
    assert second.tell().ended() == (0, "")
    assert own_table.live() == {}


@pytest.mark.parametrize("trouble", ["cut", "half_close"])
def test_a_connection_that_breaks_is_replaced_in_silence(
    start: Start, database_url: str, table: Table, proxy: Proxy, trouble: str
) -> None:
    run = start(proxy.url(database_url), LONG).up()
    before = proxy.accepted
    getattr(proxy, trouble)()
    until(lambda: proxy.accepted > before, PATIENCE, "another connection")
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert table.live() == {}


def test_a_network_that_drops_everything_ends_the_command_before_the_row(
    start: Start, database_url: str, table: Table, proxy: Proxy
) -> None:
    run = start(proxy.url(database_url), LEASE).up()
    proxy.wedge()
    code, err = run.ended()
    owner = run.told["DISLOCK_OWNER"]
    # Still ours when the command was dead: nobody else could have begun.
    assert table.live() == {"lease": owner}
    assert (code, err.count("\n")) == (75, 1)
    assert not alive(run.command)


def test_a_slow_network_is_no_trouble(start: Start, database_url: str, table: Table, proxy: Proxy) -> None:
    proxy.delay(0.1)
    run = start(proxy.url(database_url), BOTH, {"RUN_LOCK_TTL_SECONDS": 10}).up()
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert set(table.live()) == {"schedule"}


def test_a_claim_whose_answer_was_lost_is_1_and_no_run(start: Start, database_url: str, proxy: Proxy) -> None:
    proxy.lose_answer(b"INSERT INTO", then_cut=True)
    run = start(proxy.url(database_url), LEASE, {"RUN_LOCK_TTL_SECONDS": 60})
    code, err = run.ended()
    assert (code, err.count("\n")) == (1, 1)
    assert "unknown" in err
    assert not run.started


def test_the_lock_is_taken_at_its_server_once_it_is_up_again(start: Start, server: Postgres, own_table: Table) -> None:
    """What a crash of the server could undo would be a lock for two: the role's own setting is overruled."""
    own_table.ask("ALTER ROLE app SET synchronous_commit = off")
    own_table.ask("ALTER SYSTEM SET wal_writer_delay = '10s'")
    own_table.ask("SELECT pg_reload_conf()")
    url = server.url(user="app")
    run = start(url, SLOT).up()
    with psycopg.connect(url, autocommit=True) as connection:
        # The control: a commit that nobody waited for goes with the crash.
        connection.execute("INSERT INTO key_value VALUES ('control', 'x', 'infinity')")
        server.restart("immediate")
    assert own_table.ask("SELECT 1 FROM key_value WHERE key = 'control'") == []
    assert own_table.live() == {"schedule": run.told["DISLOCK_OWNER"]}
    again = start(url, SLOT)
    assert again.ended() == (0, "")
    assert not again.started
