"""Replicas that migrate and hosts that take over from each other: the examples as they stand, as real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.wait import until

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[3] / "examples"


class Hosts:
    """Hosts that have nothing in common but the database. Each of their programs notes what it does in one file."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}", "DATABASE_URL": database_url}
        self.started: list[subprocess.Popen[str]] = []
        self.program("dislock.pyz", f'exec {sys.executable} -m dislock "$@"')

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env={**self.environment, "HOST": name, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def noted(self) -> list[str]:
        return self.log.read_text().splitlines()

    def ends(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        _, err = process.communicate(timeout=60)
        return process.returncode, err


@pytest.fixture
def hosts(tmp_path: Path, database_url: str) -> Iterator[Hosts]:
    world = Hosts(tmp_path, database_url)
    yield world
    for process in world.started:
        process.kill()
        process.communicate()


def note(text: str) -> str:
    return f'echo "$HOST {text}" >>log'


def waiting(database_url: str, count: int) -> None:
    """Until so many look at the lock table, beside the one that holds the lease."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' "
        "AND application_name LIKE 'dislock %' AND query LIKE '%LEFT JOIN%slot.key%' AND query NOT LIKE '%moved%'"
    )
    with psycopg.connect(database_url, autocommit=True) as connection:
        until(lambda: connection.execute(query).fetchone() == (count,), 60, f"{count} hosts that wait")


def test_no_replica_serves_before_its_own_migration_has_ended(hosts: Hosts, database_url: str) -> None:
    hosts.program(
        "migrate",
        f"{note('begins')}; [ -e migrated ] || until [ -e go ]; do sleep 0.02; done; {note('ends')}; touch migrated",
    )
    hosts.program("serve", note("serves"))
    replicas = [hosts.start(name, str(EXAMPLES / "migration" / "start-replica")) for name in "abc"]
    waiting(database_url, 2)
    assert len(hosts.noted()) == 1
    (hosts.folder / "go").touch()
    assert [hosts.ends(replica) for replica in replicas] == [(0, "")] * 3
    running: str | None = None
    done: list[str] = []
    for line in hosts.noted():
        host, what = line.split()
        if what == "begins":
            assert running is None, "two migrations at once"
            running = host
        elif what == "ends":
            assert running == host
            running, done = None, [*done, host]
        else:
            assert host in done
    assert sorted(done) == ["a", "b", "c"]


@pytest.fixture
def line(hosts: Hosts) -> str:
    """The job of the crontab, on a tick that no test outlives and a lease that is short."""
    lines = [text for text in (EXAMPLES / "failover" / "crontab").read_text().splitlines() if not text.startswith("#")]
    settings = dict(text.split("=", 1) for text in lines if re.match(r"\w+=", text))
    (job,) = (text for text in lines if not re.match(r"\w+=", text))
    hosts.environment |= {name: settings[name] for name in settings.keys() - {"PATH", "DATABASE_URL", "SHELL"}}
    hosts.environment |= {"RUN_LOCK_TTL_SECONDS": "3", "LOCK_KILL_GRACE_SECONDS": "0.5"}
    assert job.split()[:5] == re.findall(r"--schedule='([^']*)'", job)[0].split()
    command = job.split(maxsplit=5)[5]
    return command.replace("--schedule='0 3 * * *'", "--schedule='0 0 1 1 *'")


def test_a_host_that_dies_in_mid_run_is_taken_over_from_and_the_tick_succeeds_once(
    hosts: Hosts, database_url: str, line: str
) -> None:
    hosts.program("report", f"{note('begins $DISLOCK_SLOT')}; [ $HOST != a ] || exec sleep 1000; {note('succeeds')}")
    first = hosts.start("a", "sh", "-c", f"exec {line}")
    until(hosts.noted)
    others = [hosts.start(name, "sh", "-c", f"exec {line}") for name in "bc"]
    waiting(database_url, 2)
    # With its machine: the kernel kills the command too.
    first.send_signal(signal.SIGKILL)
    assert [hosts.ends(other) for other in others] == [(0, "")] * 2
    assert hosts.ends(hosts.start("d", "sh", "-c", f"exec {line}")) == (0, "")
    noted = [text.split() for text in hosts.noted()]
    assert [text[1] for text in noted] == ["begins", "begins", "succeeds"]
    assert noted[1][0] == noted[2][0]
    assert noted[1][0] in "bc"
    assert noted[0][2] == noted[1][2]


def test_a_command_that_fails_on_one_host_runs_on_another_within_seconds(
    hosts: Hosts, database_url: str, line: str
) -> None:
    hosts.program(
        "report",
        f"{note('begins')}; [ $HOST != a ] || {{ until [ -e go ]; do sleep 0.02; done; exit 7; }}; {note('succeeds')}",
    )
    first = hosts.start("a", "sh", "-c", f"exec {line}", RUN_LOCK_TTL_SECONDS="600")
    until(hosts.noted)
    second = hosts.start("b", "sh", "-c", f"exec {line}", RUN_LOCK_TTL_SECONDS="600")
    waiting(database_url, 1)
    (hosts.folder / "go").touch()
    assert hosts.ends(first) == (7, "")
    # Long before the lease would have ended by itself.
    assert hosts.ends(second) == (0, "")
    assert hosts.noted() == ["a begins", "b begins", "b succeeds"]
