"""The row and the table under the lease: locked, truncated, dropped, forbidden, changed by force."""

from __future__ import annotations

import psycopg
import pytest

from tests.faults.conftest import LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
LONG = {**LEASE, "RUN_LOCK_TTL_SECONDS": 30}


def test_a_row_lock_that_is_given_up_in_time_is_waited_for(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LONG).up()
    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT FROM key_value FOR UPDATE")
        until(lambda: table.waiting("Lock"), PATIENCE, "a renewal that waits")
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert table.live() == {}


def test_a_row_lock_that_is_kept_ends_the_command_before_the_row(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LEASE).up()
    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT FROM key_value FOR UPDATE")
        code, err = run.ended()
        assert table.live() == {"lease": run.told["DISLOCK_OWNER"]}
    assert (code, err.count("\n")) == (75, 1)
    assert "no renewal was confirmed in time" in err
    assert not alive(run.command)
    until(lambda: not table.live(), PATIENCE, "the end of the row: no late statement renews it")


def test_a_row_lock_at_exit_is_a_warning_and_the_commands_code(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LONG).up()
    with psycopg.connect(database_url) as blocker:
        blocker.execute("SELECT FROM key_value FOR UPDATE")
        code, err = run.tell(3).ended(12)
        assert (code, err.count("\n")) == (3, 1)
        assert "could not be freed" in err


def test_a_table_lock_at_start_is_one_line_and_1(start: Start, database_url: str, table: Table) -> None:
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
        run = start(database_url, SLOT, {"LOCK_CONNECT_TIMEOUT_SECONDS": 10})
        code, err = run.ended()
    assert (code, err.count("\n")) == (1, 1)
    assert not run.started
    until(lambda: not table.backends(), PATIENCE, "the end of the connection")
    assert table.live() == {}, "it was cancelled, so it is not carried out when the table is free"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE key_value SET value = 'thief:1', expire_at = 'infinity'", "thief:1"),
        ("UPDATE key_value SET expire_at = clock_timestamp() - interval '1 s'", "was lost"),
        ("UPDATE key_value SET expire_at = expire_at + interval '1 hour'", "was lost"),
    ],
)
def test_a_row_changed_by_force_is_a_loss_at_once(
    start: Start, database_url: str, table: Table, change: str, why: str
) -> None:
    """At once: long before the TTL."""
    run = start(database_url, LEASE, {"RUN_LOCK_TTL_SECONDS": 3600}).up()
    table.ask(change)
    before = table.ask("SELECT value, expire_at::text FROM key_value")
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert why in err
    assert not alive(run.command)
    assert table.ask("SELECT value, expire_at::text FROM key_value") == before, "a row that is not ours is not touched"


def test_under_continue_a_loss_is_one_line_and_the_commands_code(start: Start, database_url: str, table: Table) -> None:
    run = start(database_url, LEASE, {"LOCK_ON_LEASE_LOSS": "continue"}).up()
    table.ask("UPDATE key_value SET value = 'thief:1'")
    until(lambda: run.err, PATIENCE, "the warning")
    assert alive(run.command)
    code, err = run.tell(8).ended()
    assert (code, err.count("\n")) == (8, 1)
    assert table.live() == {"lease": "thief:1"}


@pytest.mark.parametrize(
    ("change", "why"),
    [("DROP TABLE key_value", "does not exist"), ("REVOKE UPDATE ON key_value FROM app", "GRANT")],
)
def test_a_table_that_cannot_be_used_any_more_is_a_loss_when_the_time_is_up(
    start: Start, server: Postgres, own_table: Table, change: str, why: str
) -> None:
    run = start(server.url(user="app"), LEASE).up()
    own_table.ask(change)
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert why in err
    assert not alive(run.command)


def test_a_privilege_that_comes_back_in_time_is_survived_in_silence(
    start: Start, server: Postgres, own_table: Table
) -> None:
    run = start(server.url(user="app"), LONG).up()
    own_table.ask("REVOKE UPDATE ON key_value FROM app")
    denied = server.log.count("permission denied")
    until(lambda: server.log.count("permission denied") > denied, PATIENCE, "a renewal that is refused")
    own_table.ask("GRANT UPDATE ON key_value TO app")
    end = own_table.ends()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert own_table.live() == {}


def test_a_privilege_revoked_at_exit_is_a_warning_and_the_commands_code(
    start: Start, server: Postgres, own_table: Table
) -> None:
    run = start(server.url(user="app"), LEASE, {"RUN_LOCK_TTL_SECONDS": 3600, "LOCK_LEASE_INTERVAL": 1000}).up()
    own_table.ask("REVOKE UPDATE ON key_value FROM app")
    code, err = run.tell(3).ended()
    assert (code, err.count("\n")) == (3, 1)
    assert "GRANT" in err
