"""SIGTERM in every phase: the exit code says so, nothing runs, and what was taken is given back."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tests.faults.conftest import BOTH, LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE
from tests.support.proxy import Proxy
from tests.support.wait import until

pytestmark = pytest.mark.integration
CONDITIONS = [pytest.param(SLOT, id="slot"), pytest.param(LEASE, id="lease"), pytest.param(BOTH, id="both")]


def slow_down(table: Table, operation: str, kind: str, seconds: float) -> None:
    """Has the server take its time over a row of that kind, in the middle of the statement."""
    table.ask(
        "CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
    )
    table.ask(
        f"CREATE TRIGGER slow AFTER {operation} ON key_value FOR EACH ROW"
        f" WHEN (new.key LIKE '%%:{kind}:%%') EXECUTE FUNCTION take_time()"
    )


@pytest.mark.parametrize("settings", CONDITIONS)
def test_while_connecting(
    start: Start, database_url: str, table: Table, proxy: Proxy, settings: dict[str, str]
) -> None:
    proxy.wedge()
    run = start(proxy.url(database_url), settings, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
    until(lambda: proxy.accepted, PATIENCE, "a connection")
    assert run.send(signal.SIGTERM).ended(10) == (143, "")
    assert not run.started
    assert table.live() == {}


@pytest.mark.parametrize(
    ("settings", "kind", "number"),
    [
        pytest.param(SLOT, "schedule", signal.SIGTERM, id="slot"),
        pytest.param(LEASE, "lease", signal.SIGINT, id="lease"),
        pytest.param(BOTH, "lease", signal.SIGTERM, id="both"),
        pytest.param(BOTH, "schedule", signal.SIGHUP, id="both-first"),
    ],
)
def test_between_the_claim_and_the_start(
    start: Start, database_url: str, table: Table, settings: dict[str, str], kind: str, number: int
) -> None:
    """The answer comes within the second that a statement in flight still has: all that was taken is given back."""
    slow_down(table, "INSERT", kind, 0.5)
    run = start(database_url, settings)
    until(lambda: table.waiting("PgSleep"), PATIENCE, "the claim")
    assert run.send(number).ended(10) == (128 + number, "")
    assert not run.started
    assert table.live() == {}


def test_between_the_claim_and_the_start_when_the_answer_takes_too_long(
    start: Start, database_url: str, table: Table
) -> None:
    """The claim is called back, so nothing was taken; the slot is given back."""
    slow_down(table, "INSERT", "lease", 4)
    run = start(database_url, BOTH)
    until(lambda: table.waiting("PgSleep"), PATIENCE, "the claim")
    assert run.send(signal.SIGTERM).ended(10) == (143, "")
    assert not run.started
    assert table.live() == {}


def test_between_the_claim_and_the_start_when_the_answer_is_lost(
    start: Start, database_url: str, table: Table, proxy: Proxy
) -> None:
    """Nobody knows then whether the lease was taken: it says so, and the row expires."""
    lost = proxy.lose_answer(b"INSERT INTO", then_cut=False)
    run = start(proxy.url(database_url), LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60})
    assert lost.wait(PATIENCE)
    code, err = run.send(signal.SIGTERM).ended(10)
    assert (code, err.count("\n")) == (143, 1)
    assert "unknown" in err
    assert not run.started


@pytest.mark.parametrize("settings", CONDITIONS)
def test_while_waiting_for_a_row_lock(start: Start, database_url: str, table: Table, settings: dict[str, str]) -> None:
    """The statement is called back: it must not take the lock for nobody once the row can be had."""
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE key_value IN EXCLUSIVE MODE")
        run = start(database_url, settings)
        until(lambda: table.waiting("Lock"), PATIENCE, "the claim")
        assert run.send(signal.SIGTERM).ended(10) == (143, "")
        assert not run.started
    until(lambda: not table.backends(), PATIENCE, "the end of the connection")
    assert table.live() == {}


def test_during_the_release(start: Start, database_url: str, table: Table) -> None:
    """The work is over: its result is not replaced by a death, and the row is freed."""
    run = start(database_url, LEASE, {"LOCK_LEASE_INTERVAL": 6, "RUN_LOCK_TTL_SECONDS": 60}).up()
    slow_down(table, "UPDATE", "lease", 1)
    run.tell(4)
    until(lambda: table.waiting("PgSleep"), PATIENCE, "the release")
    assert run.send(signal.SIGTERM).ended() == (4, "")
    assert table.live() == {}


def test_during_a_release_that_hangs(start: Start, database_url: str, proxy: Proxy) -> None:
    """Leaving takes at most five seconds whatever the network does, and a signal does not cut it short."""
    run = start(proxy.url(database_url), LEASE, {"LOCK_LEASE_INTERVAL": 30, "RUN_LOCK_TTL_SECONDS": 120}).up()
    proxy.wedge()
    before = proxy.accepted
    run.tell(4)
    until(lambda: proxy.accepted > before, PATIENCE, "the connection for the release")
    code, err = run.send(signal.SIGTERM).ended(10)
    assert (code, err.count("\n")) == (4, 1)
    assert "could not be freed" in err
