"""Eight processes, one counter row, every manner of locking, and sudden death: no update is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.integration.advisory.actors import sqlalchemy_url
from tests.integration.advisory.observer import Observer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WORKERS = 8
PROGRAM = "tests.integration.advisory.increments"
ROOT = Path(__file__).parents[3]
#: Seconds; a quiet machine with two processors needs about ten.
PATIENCE = 300.0


class Crowd:
    """The workers, and the hand that kills them."""

    def __init__(self, conninfo: str, target: int, guard: str, seed: int) -> None:
        self._conninfo = conninfo
        self._target = target
        self._guard = guard
        self._chance = random.Random(seed)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: int) -> None:
        driver = ("psycopg", "psycopg2")[name % 2]
        url = sqlalchemy_url(self._conninfo, driver).render_as_string(hide_password=False)
        seed = str(self._chance.random())
        self._workers[name] = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, url, str(name), str(self._target), self._guard, seed], cwd=ROOT
        )

    def kill_one(self) -> None:
        name = self._chance.randrange(WORKERS)
        self._workers[name].kill()
        self._workers[name].wait()
        self.start(name)

    def all_ended(self) -> bool:
        return all(worker.poll() is not None for worker in self._workers.values())

    def codes(self) -> set[int | None]:
        return {worker.poll() for worker in self._workers.values()}

    def kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()
            worker.wait()


def increments(conninfo: str, *, target: int, guard: str, kills: int, seed: int) -> tuple[int, int]:
    """The counter, and how many increments were committed."""
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        connection.execute("DROP TABLE IF EXISTS counter, done")
        connection.execute("CREATE TABLE counter (n int) WITH (fillfactor = 10)")
        connection.execute("CREATE TABLE done (worker int)")
        connection.execute("INSERT INTO counter VALUES (0)")
        crowd = Crowd(conninfo, target, guard, seed)
        stack.callback(crowd.kill)
        connection.execute("SELECT pg_advisory_lock(1, 1)")
        for name in range(WORKERS):
            crowd.start(name)
        Observer(connection).until_waiting(WORKERS)
        connection.execute("SELECT pg_advisory_unlock(1, 1)")
        end = time.monotonic() + PATIENCE
        marks = [target * number // (kills + 1) for number in range(1, kills + 1)]
        while not crowd.all_ended():
            assert time.monotonic() < end, "the workers did not come to an end"
            (reached,) = connection.execute("SELECT n FROM counter").fetchone() or (0,)
            if marks and reached >= marks[0]:
                marks.pop(0)
                if len(marks) % 2:
                    crowd.kill_one()
                else:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
                    )
            time.sleep(0.01)
        assert crowd.codes() == {0}
        assert not marks
        row = connection.execute("SELECT n, (SELECT count(*) FROM done) FROM counter").fetchone()
        assert row is not None
        return row


def test_no_update_is_lost(conninfo: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    counter, committed = increments(conninfo, target=10_000, guard="guarded", kills=12, seed=seed)
    assert (counter, committed) == (10_000, 10_000)


def test_without_the_lock_the_same_crowd_loses_updates(conninfo: str) -> None:
    counter, committed = increments(conninfo, target=500, guard="unguarded", kills=0, seed=1)
    assert committed > counter
