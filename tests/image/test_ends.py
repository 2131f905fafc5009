"""A container that is stopped, killed, starved, paused, or that leaves processes behind."""

from __future__ import annotations

import psycopg
import pytest
from docker.models.containers import Container  # type: ignore[import-untyped]  # the package has no types

from tests.image.engine import Containers
from tests.support.wait import until

pytestmark = pytest.mark.integration

TRAP = ("DATABASE_URL", "sh", "-c", "trap 'echo caught; exit 9' TERM; echo ready; sleep 1000 & wait")
#: A thousand processes whose parents are gone before them; ends with 0 once none of them is left as a zombie.
ORPHANS = """
i=0
while [ $i -lt 1000 ]; do (true &) ; i=$((i+1)); done
(sh -c 'sleep 0.3; grep ^PPid /proc/$$/status' &)
tries=0
while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null || [ $tries -lt 20 ]; do
    tries=$((tries+1)); [ $tries -lt 200 ] || exit 9
    sleep 0.05
done
"""


class Database:
    """The lock table as others see it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def live(self) -> list[str]:
        """The owners of the rows that have not ended."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT value FROM key_value WHERE expire_at > clock_timestamp()").fetchall()
            return [str(row[0]) for row in rows]


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url)


def ready(container: Container) -> Container:
    until(lambda: b"ready" in container.logs(), what="the command's first line")
    return container


def test_stop(containers: Containers, image: str, variables: dict[str, str], database: Database) -> None:
    container = ready(containers.start(image, *TRAP, environment=variables))
    assert len(database.live()) == 1
    container.stop(timeout=30)
    ended = containers.end(container)
    assert (ended.code, ended.out, ended.err) == (9, "ready\ncaught\n", "")
    assert database.live() == []


def test_stop_of_one_that_does_not_listen(
    containers: Containers, image: str, variables: dict[str, str], database: Database
) -> None:
    deaf = ("DATABASE_URL", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    container = ready(containers.start(image, *deaf, environment=variables))
    container.stop(timeout=1)
    assert containers.end(container).code == 137
    # Nobody was left to free the lock: until it expires, nobody else runs.
    assert len(database.live()) == 1
    refused = containers.run(image, "DATABASE_URL", "echo", "ran", environment=variables)
    assert (refused.code, refused.out, refused.err) == (0, "", "")


def test_kill_ends_everything_and_the_row_outlives_it_by_its_ttl(
    containers: Containers, image: str, variables: dict[str, str], database: Database
) -> None:
    short = {**variables, "RUN_LOCK_TTL_SECONDS": "8"}
    container = ready(containers.start(image, *TRAP, environment=short))
    container.kill()
    ended = containers.end(container)
    assert (ended.code, ended.out) == (137, "ready\n")
    assert len(database.live()) == 1
    until(lambda: database.live() == [])
    assert containers.run(image, "DATABASE_URL", "echo", "ran", environment=variables).out == "ran\n"


def test_orphans_are_reaped(containers: Containers, image: str, variables: dict[str, str]) -> None:
    ended = containers.run(image, "DATABASE_URL", "sh", "-c", ORPHANS, environment=variables)
    # The one that tells says whose child it was.
    assert (ended.code, ended.out, ended.err) == (0, "PPid:\t1\n", "")


@pytest.mark.parametrize("strategy", ["schedule", "lease"])
def test_orphans_do_not_keep_it(containers: Containers, image: str, variables: dict[str, str], strategy: str) -> None:
    command = ("DATABASE_URL", "sh", "-c", "(sleep 1000 &); exit 5")
    given = {**variables, "LOCK_STRATEGY": strategy, "CRON_SCHEDULE": "0 0 1 1 *", "CRON_TZ": "UTC"}
    assert containers.run(image, *command, environment=given).code == 5


def test_out_of_memory(containers: Containers, image: str, variables: dict[str, str], database: Database) -> None:
    greedy = ("DATABASE_URL", "python3", "-c", "x = b'x' * (500 << 20)")
    ended = containers.run(image, *greedy, environment=variables, mem_limit="80m", memswap_limit="80m")
    # The kernel takes the largest process, which is the command.
    assert ended.code == 137
    assert database.live() == []


def test_paused_beyond_its_ttl(
    containers: Containers, image: str, variables: dict[str, str], database: Database
) -> None:
    short = {**variables, "RUN_LOCK_TTL_SECONDS": "9", "LOCK_KILL_GRACE_SECONDS": "3"}
    container = ready(containers.start(image, *TRAP, environment=short))
    container.pause()
    until(lambda: database.live() == [])
    other = ready(containers.start(image, *TRAP, environment=variables))
    [holder] = database.live()
    container.unpause()
    ended = containers.end(container)
    assert ended.code == 75
    # Its time was over before it could notice, so that it may have none left between SIGTERM and SIGKILL.
    assert ended.out in ("ready\n", "ready\ncaught\n")
    assert ended.err.startswith("dislock: ")
    # The other one's lock is what it was.
    other.reload()
    assert (other.status, database.live()) == ("running", [holder])


def test_two_of_one_name(containers: Containers, image: str, variables: dict[str, str], database: Database) -> None:
    first = ready(containers.start(image, *TRAP, environment=variables))
    [owner] = database.live()
    # On the host's network both have the host's name, and both are process 1.
    assert owner.endswith(":1")
    second = containers.run(image, "DATABASE_URL", "echo", "ran", environment=variables)
    assert (second.code, second.out, second.err) == (0, "", "")
    assert database.live() == [owner]
    # The namesake neither renews nor frees what a dead one left.
    first.kill()
    containers.end(first)
    third = containers.run(image, "DATABASE_URL", "echo", "ran", environment=variables)
    assert (third.code, third.out, third.err) == (0, "", "")
    assert database.live() == [owner]
