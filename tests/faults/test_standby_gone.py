"""A primary whose synchronous standby is gone: it makes each change, and says that it may exist there alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dislock import DatabaseUnavailableError, LockContext, NotSealedError, acquire_locks, aio
from tests.faults.conftest import BOTH, LEASE, SLOT, Start, Table, furnish
from tests.faults.wrapper import PATIENCE, alive
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
HASTY = {"LOCK_CONNECT_TIMEOUT_SECONDS": 2}
#: Sessions of the tests' own wait for nobody.
ALONE = "options=-c%20synchronous_commit%3Dlocal"


class Primary:
    """A server that can lose its standby."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.url = server.url()
        self.table = Table(server.url(query=ALONE))

    def lose_standby(self) -> None:
        self._server.configure({"synchronous_standby_names": "gone"})
        self._server.reload()
        until(lambda: self.table.ask("SHOW synchronous_standby_names") == [("gone",)], PATIENCE)


@pytest.fixture
def primary() -> Iterator[Primary]:
    with Postgres() as server:
        furnish(server)
        yield Primary(server)


@pytest.mark.parametrize("settings", [LEASE, SLOT, BOTH])
def test_a_claim_is_1_and_given_back(start: Start, primary: Primary, settings: dict[str, Any]) -> None:
    primary.lose_standby()
    run = start(primary.url, settings, HASTY)
    code, err = run.ended()
    assert code == 1
    assert "synchronous replication" in err
    assert "given back and nothing is run" in err
    assert not run.started
    assert primary.table.live() == {}


def test_a_refusal_is_1(start: Start, primary: Primary) -> None:
    primary.table.ask("INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'other:1', now() + interval '1 hour')")
    primary.lose_standby()
    code, err = start(primary.url, LEASE, HASTY).ended()
    assert (code, err.count("\n")) == (1, 1)
    assert "was refused, but" in err
    assert "synchronous replication" in err


def test_a_lease_is_lost_before_the_end_that_the_standby_has(start: Start, primary: Primary) -> None:
    run = start(primary.url, {**LEASE, "RUN_LOCK_TTL_SECONDS": 12, "LOCK_LEASE_INTERVAL": 3}).up()
    primary.lose_standby()
    # One renewal hangs, so the end that is seen is the last one that was replicated.
    until(lambda: primary.table.waiting("SyncRep"), PATIENCE, "a renewal that waits for the standby")
    end = primary.table.ends()
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "no renewal was confirmed in time" in err
    assert "synchronous replication" in err
    assert not alive(run.command)
    assert primary.table.ask("SELECT clock_timestamp() < %s", end) == [(True,)]


def test_a_release_is_a_warning_and_the_commands_code(start: Start, primary: Primary) -> None:
    run = start(primary.url, {**LEASE, "RUN_LOCK_TTL_SECONDS": 40}).up()
    primary.lose_standby()
    code, err = run.tell(3).ended()
    assert code == 3
    assert "could not be freed" in err
    assert all(line.startswith("dislock: warning: ") for line in err.splitlines())


def test_a_seal_is_none_and_75(start: Start, primary: Primary) -> None:
    run = start(primary.url, BOTH, {"LOCK_SLOT_CONSUMED_BY": "success"}).up()
    primary.lose_standby()
    code, err = run.tell(0).ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "was not sealed" in err
    assert "another host may run this tick again" in err


@pytest.mark.parametrize("strategies", [["lease"], ["schedule"]])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_block_is_not_entered(primary: Primary, strategies: list[str], asynchronous: bool) -> None:
    primary.lose_standby()
    with pytest.raises(DatabaseUnavailableError, match="synchronous replication"):
        use(context(primary.url, connect_timeout_seconds=2.0), strategies, lambda: None, asynchronous=asynchronous)
    assert primary.table.live() == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_block_that_succeeds_is_not_sealed(primary: Primary, asynchronous: bool) -> None:
    success = context(primary.url, slot_consumed_by="success", run_ttl_seconds=5.0, lease_interval_seconds=1.0)
    with pytest.raises(NotSealedError):
        use(success, ["schedule", "lease"], primary.lose_standby, asynchronous=asynchronous)


def context(url: str, **changes: Any) -> LockContext:
    values: dict[str, Any] = {
        "url": url,
        "table_parts": ["key_value"],
        "lock_key": "job",
        "owner": "host:1",
        "schedule": "0 0 1 1 *",
        "run_ttl_seconds": 30.0,
        "lease_interval_seconds": 5.0,
    }
    return LockContext(**{**values, **changes})


def use(given: LockContext, strategies: list[str], work: Any, *, asynchronous: bool) -> None:
    """Work in a guarded block."""

    async def block() -> None:
        async with aio.acquire_locks(given, strategies):
            await asyncio.to_thread(work)

    if asynchronous:
        asyncio.run(block())
        return
    with acquire_locks(given, strategies):
        work()
