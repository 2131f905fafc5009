"""Many at once: one run, and everybody else leaves without a word."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from multiprocessing.synchronize import Barrier

import psycopg
import pytest

from dislock import LeaseLock, LockContext, LockNotAcquiredError, ScheduleLock
from tests.faults.conftest import LEASE, SLOT, Start, Table
from tests.faults.wrapper import PATIENCE
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
CROWD = 30
ROUNDS = 1000
#: On a machine that is too slow for all rounds, what there was time for has to do.
LONGEST_SECONDS = 60.0
FEWEST_ROUNDS = 50


@pytest.mark.parametrize("settings", [pytest.param(SLOT, id="slot"), pytest.param(LEASE, id="lease")])
def test_thirty_starters_and_fewer_connections_are_one_run(
    start: Start, server: Postgres, own_table: Table, settings: dict[str, str]
) -> None:
    patient = {"LOCK_CONNECT_TIMEOUT_SECONDS": 120, "RUN_LOCK_TTL_SECONDS": 120}
    runs = [start(server.url(user="app"), settings, patient) for _ in range(CROWD)]
    until(lambda: sum(run.process.poll() is not None for run in runs) == CROWD - 1, 3 * PATIENCE, "29 skips")
    (holder,) = (run for run in runs if run.process.poll() is None)
    others = [run for run in runs if run is not holder]
    assert {run.ended() for run in others} == {(0, "")}
    assert not any(run.started for run in others)
    assert holder.up().tell(5).ended() == (5, "")
    assert [run for run in runs if run.started] == [holder]


@pytest.mark.parametrize("kind", ["slot", "lease"])
def test_two_hosts_that_fight_for_one_lock_many_times_are_never_two(database_url: str, kind: str) -> None:
    methods = multiprocessing.get_context("spawn")
    together, results = methods.Barrier(2), methods.Queue()
    hosts = [
        methods.Process(target=fight, args=(database_url, kind, f"host{number}:1", together, results))
        for number in range(2)
    ]
    for host in hosts:
        host.start()
    won = [results.get(timeout=LONGEST_SECONDS + 3 * PATIENCE) for _ in hosts]
    for host in hosts:
        host.join(PATIENCE)
    rounds = Counter(number for wins, _ in won for number in wins)
    tried = min(tried for _, tried in won)
    assert tried >= FEWEST_ROUNDS
    assert rounds == Counter(range(tried)), "each round has exactly one winner"
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM key_value WHERE value !~ '^host[01]:1$'").fetchone() == (0,)


def fight(url: str, kind: str, owner: str, together: Barrier, results: multiprocessing.Queue[object]) -> None:
    """One host's side: in each round both want the lock at one moment, and the winner keeps it until both know."""
    end = time.monotonic() + LONGEST_SECONDS
    wins: list[int] = []
    number = 0
    while number < ROUNDS:
        together.wait(PATIENCE)
        # Both must stop after the same round: whoever has no time left tells by breaking the barrier.
        if time.monotonic() > end:
            together.abort()
            break
        lock = make_lock(url, kind, owner, number)
        try:
            lock.__enter__()
        except LockNotAcquiredError:
            pass
        else:
            wins.append(number)
        try:
            together.wait(PATIENCE)
        except BaseException:  # noqa: BLE001 - the other has stopped, or is stuck: what was won until here counts
            break
        if number in wins[-1:]:
            lock.__exit__(None, None, None)
        number += 1
    results.put((wins, number))


def make_lock(url: str, kind: str, owner: str, number: int) -> LeaseLock | ScheduleLock:
    context = LockContext(
        url=url,
        table_parts=["key_value"],
        # A slot ends at a moment that all agree on, so each round has one of its own; the lease is one and the same.
        lock_key=f"job{number if kind == 'slot' else ''}",
        owner=owner,
        next_run_time=datetime.now(timezone.utc) + timedelta(hours=1),
        run_ttl_seconds=60.0,
        lease_interval_seconds=20.0,
    )
    return ScheduleLock(context) if kind == "slot" else LeaseLock(context)


@pytest.fixture(autouse=True)
def no_zombies() -> Iterator[None]:
    yield
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
