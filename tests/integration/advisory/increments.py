"""One worker of the stress test, a program of its own so that it can be killed.

Increments a counter by reading it and writing one more, in every manner the lock can be used, until the counter has
reached its target. Each increment that commits also leaves a row in ``done``: the two can differ only by lost updates.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from contextlib import nullcontext

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockWarning

LOCKER = PgAdvisoryLock(["counter"], raise_on_failure=False)
READ = text("SELECT n FROM counter")
WRITE = text("WITH noted AS (INSERT INTO done VALUES (:worker) RETURNING 1) UPDATE counter SET n = :n FROM noted")


class Worker:
    def __init__(self, name: int, target: int, guarded: bool, chance: random.Random) -> None:
        self._name = name
        self._target = target
        self._guarded = guarded
        self._chance = chance

    def run(self, connection: Connection) -> None:
        """Until the target is reached or the connection is lost."""
        while True:
            with connection.begin() as transaction:
                if not self._guarded or self._take(connection):
                    with LOCKER.held(connection) if self._guarded and self._one_in(10) else nullcontext():
                        for _ in range(self._chance.randrange(1, 20)):
                            if self._increment(connection) >= self._target:
                                return
                    if self._one_in(20):
                        transaction.rollback()

    def _take(self, connection: Connection) -> bool:
        if self._one_in(20):
            # A lock that goes with its savepoint guards nothing afterwards, so it is taken again below.
            nested = connection.begin_nested()
            LOCKER.lock(connection, timeout_in_ms=1)
            nested.rollback()
        if self._one_in(20):
            with connection.begin_nested():
                return LOCKER.lock(connection, timeout_in_ms=60_000)
        if self._one_in(10):
            return LOCKER.lock_immediate(connection)
        return LOCKER.lock(connection, timeout_in_ms=self._chance.choice([2, 60_000, 60_000, 60_000]))

    def _increment(self, connection: Connection) -> int:
        n = int(connection.execute(READ).scalar_one())
        if self._one_in(50):
            nested = connection.begin_nested()
            connection.execute(WRITE, {"n": n + 100, "worker": self._name})
            nested.rollback()
        if n < self._target:
            connection.execute(WRITE, {"n": n + 1, "worker": self._name})
        return n

    def _one_in(self, number: int) -> bool:
        return self._chance.randrange(number) == 0


def main() -> None:
    url, name, target, guarded, seed = sys.argv[1:]
    warnings.simplefilter("ignore", PgAdvisoryLockWarning)
    engine = create_engine(url)
    worker = Worker(int(name), int(target), guarded == "guarded", random.Random(seed))
    with engine.begin() as connection:
        # Nobody begins before all are there: the test holds this gate.
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(1, 1)"))
    finished = False
    while not finished:
        # The test ends server processes too; whoever loses one goes on with the next.
        with contextlib.suppress(DBAPIError), engine.connect() as connection:
            worker.run(connection)
            finished = True


if __name__ == "__main__":
    main()
