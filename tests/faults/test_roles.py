"""Settings of a role or database that are meant for other programs, or against this one."""

from __future__ import annotations

import psycopg
import pytest

from tests.faults.conftest import BOTH, LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration


def set_role(table: Table, *settings: str) -> None:
    for setting in settings:
        table.ask(f"ALTER ROLE app SET {setting}")


HOSTILE = [
    "idle_session_timeout = '150ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "statement_timeout = '500ms'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "synchronous_commit = off",
    "DateStyle = 'German, DMY'",
    "TimeZone = 'Pacific/Kiritimati'",
    "IntervalStyle = 'sql_standard'",
    "extra_float_digits = -15",
    "standard_conforming_strings = off",
    "search_path = public, pg_temp",
    "client_encoding = 'SQL_ASCII'",
    "quote_all_identifiers = on",
    "row_security = off",
    "jit_above_cost = 0",
    "plan_cache_mode = 'force_generic_plan'",
]


@pytest.mark.parametrize("settings", [pytest.param(BOTH, id="both"), pytest.param(SLOT, id="slot")])
def test_all_of_them_at_once_change_nothing(
    start: Start, server: Postgres, own_table: Table, settings: dict[str, str]
) -> None:
    set_role(own_table, *HOSTILE)
    run = start(server.url(user="app"), settings, {"RUN_LOCK_TTL_SECONDS": 10, "LOCK_LEASE_INTERVAL": 1}).up()
    if settings is BOTH:
        end = own_table.ends()
        until(lambda: own_table.renewed(end), PATIENCE, "a renewal")
        refused = start(server.url(user="app"), LEASE)
        assert refused.ended() == (0, "")
        assert not refused.started
    assert run.tell().ended() == (0, "")
    assert set(own_table.live()) == {"schedule"}


def test_a_lock_timeout_of_the_role_does_not_hurry_a_claim(start: Start, server: Postgres, own_table: Table) -> None:
    set_role(own_table, "lock_timeout = '1ms'")
    own_table.ask("INSERT INTO key_value VALUES ('cronjob-lock:schedule:job', 'host:1', '2000-01-01')")
    with psycopg.connect(server.url()) as blocker:
        blocker.execute("SELECT FROM key_value FOR UPDATE")
        run = start(server.url(user="app"), SLOT, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
        until(lambda: own_table.waiting("Lock"), PATIENCE, "the claim")
    assert run.up().tell().ended() == (0, "")


def test_a_lock_timeout_of_the_role_that_ends_a_wait_for_the_table_is_tried_again(
    start: Start, server: Postgres, own_table: Table
) -> None:
    set_role(own_table, "lock_timeout = '1ms'")
    with psycopg.connect(server.url()) as blocker:
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
        run = start(server.url(user="app"), SLOT, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
        until(lambda: server.log.count("lock timeout") > 1, PATIENCE, "a second try")
    assert run.up().tell().ended() == (0, "")


def test_a_statement_timeout_is_tried_again(start: Start, server: Postgres, own_table: Table) -> None:
    set_role(own_table, "statement_timeout = '300ms'")
    run = start(server.url(user="app"), LEASE, {"RUN_LOCK_TTL_SECONDS": 60}).up()
    with psycopg.connect(server.url()) as blocker:
        blocker.execute("SELECT FROM key_value FOR UPDATE")
        seen = server.log.count("statement timeout")
        until(lambda: server.log.count("statement timeout") > seen + 1, PATIENCE, "cancelled renewals")
    end = own_table.ends()
    until(lambda: own_table.renewed(end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert own_table.live() == {}


def test_serializable_starters_of_one_job_are_one_run_and_silent_skips(
    start: Start, server: Postgres, own_table: Table
) -> None:
    """A conflict of serializable transactions is an error to PostgreSQL and only a second try to us."""
    set_role(own_table, "default_transaction_isolation = 'serializable'")
    url = server.url(user="app")
    with psycopg.connect(server.url()) as blocker:
        # They meet at the row, so that each has its snapshot before another's claim is visible.
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
        runs = [start(url, LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60}) for _ in range(5)]
        until(lambda: len(own_table.backends()) == 5, PATIENCE, "five claims")
    until(lambda: sum(run.process.poll() is not None for run in runs) == 4, PATIENCE, "four skips")
    (holder,) = (run for run in runs if run.process.poll() is None)
    assert all(run.ended() == (0, "") and not run.started for run in runs if run is not holder)
    assert holder.up().tell(9).ended() == (9, "")


def test_a_read_only_role_is_told_at_start(start: Start, server: Postgres, own_table: Table) -> None:
    set_role(own_table, "default_transaction_read_only = on")
    run = start(server.url(user="app"), SLOT, {"LOCK_CONNECT_TIMEOUT_SECONDS": 1})
    code, err = run.ended()
    assert (code, err.count("\n")) == (1, 1)
    assert "read-only" in err
    assert not run.started


def test_a_role_that_becomes_read_only_loses_its_lease_in_time(
    start: Start, server: Postgres, own_table: Table
) -> None:
    run = start(server.url(user="app"), LEASE).up()
    set_role(own_table, "default_transaction_read_only = on")
    for backend in own_table.backends():
        own_table.ask("SELECT pg_terminate_backend(%s)", backend)
    code, err = run.ended()
    assert own_table.live() == {"lease": run.told["DISLOCK_OWNER"]}
    assert (code, err.count("\n")) == (75, 1)
    assert "read-only" in err
    assert not alive(run.command)
