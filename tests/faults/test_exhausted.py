"""No connection left on the server: at start, at a renewal, at exit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from tests.faults.conftest import LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
LONG = {**LEASE, "RUN_LOCK_TTL_SECONDS": 30}


@contextmanager
def crowded(server: Postgres) -> Iterator[ExitStack]:
    """All of the connections that ordinary roles may have are in use until the stack is closed."""
    with ExitStack() as guests:
        with suppress(psycopg.OperationalError):
            while True:
                guests.enter_context(psycopg.connect(server.url(user="app")))
        yield guests


def test_at_start_it_is_one_line_and_1(start: Start, server: Postgres, own_table: Table) -> None:
    with crowded(server):
        run = start(server.url(user="app"), SLOT, {"LOCK_CONNECT_TIMEOUT_SECONDS": 1})
        code, err = run.ended()
    assert (code, err.count("\n")) == (1, 1)
    assert "connection" in err
    assert not run.started
    assert own_table.live() == {}


def test_at_start_it_waits_for_one(start: Start, server: Postgres) -> None:
    with crowded(server) as guests:
        refused = server.log.count("remaining connection slots")
        run = start(server.url(user="app"), LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
        until(lambda: server.log.count("remaining connection slots") > refused, PATIENCE, "a refused connection")
        guests.close()
        assert run.up().tell().ended() == (0, "")


def test_at_a_renewal_it_is_survived_while_there_is_time(start: Start, server: Postgres, own_table: Table) -> None:
    run = start(server.url(user="app"), LONG).up()
    with crowded(server) as guests:
        (backend,) = own_table.backends()
        own_table.ask("SELECT pg_terminate_backend(%s)", backend)
        # Its place is taken before it comes back, or it had luck: then there is nothing to see.
        with suppress(psycopg.OperationalError):
            while True:
                guests.enter_context(psycopg.connect(server.url(user="app")))
        guests.close()
    end = own_table.ends()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert own_table.live() == {}


def test_at_renewals_until_there_is_no_time_left(start: Start, server: Postgres, own_table: Table) -> None:
    run = start(server.url(user="app"), LEASE).up()
    own_table.ask("ALTER ROLE app CONNECTION LIMIT 0")
    for backend in own_table.backends():
        own_table.ask("SELECT pg_terminate_backend(%s)", backend)
    code, err = run.ended()
    assert own_table.live() == {"lease": run.told["DISLOCK_OWNER"]}
    assert (code, err.count("\n")) == (75, 1)
    assert "too many connections" in err
    assert not alive(run.command)


def test_at_exit_the_renewing_connection_will_do(start: Start, server: Postgres, own_table: Table) -> None:
    run = start(server.url(user="app"), LONG).up()
    with crowded(server):
        assert run.tell(3).ended() == (3, "")
        assert own_table.live() == {}
