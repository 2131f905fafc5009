"""A command under locks: ``run_with_locks``, and which process runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dislock import (
    LeaseLock,
    LockNotAcquiredError,
    run_with_locks,
)
from tests.integration.library.conftest import MakeContext
from tests.integration.process.test_init import NAMESPACE
from tests.integration.process.test_init import _possible as possible
from tests.support.wait import until

pytestmark = pytest.mark.integration
Connection = psycopg.Connection[Any]
BOTH = ("schedule", "lease")


def test_the_slot_of_the_command_is_told_in_utc(make: MakeContext, tmp_path: Path) -> None:
    moment = datetime(2060, 7, 1, 3, tzinfo=timezone(timedelta(hours=2)))
    command = ["sh", "-c", f"echo $DISLOCK_SLOT >{tmp_path}/slot"]
    assert run_with_locks(command, make(schedule=None, next_run_time=moment), ["schedule"]) == 0
    assert (tmp_path / "slot").read_text() == "2060-07-01T01:00:00Z\n"


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_a_command_under_locks_returns_its_code(make: MakeContext, command: str, code: int) -> None:
    assert run_with_locks(["sh", "-c", command], make(), ["lease"]) == code


def test_a_refused_command_raises_and_does_not_run(make: MakeContext, tmp_path: Any) -> None:
    with LeaseLock(make(owner="other:9")), pytest.raises(LockNotAcquiredError):
        run_with_locks(["touch", str(tmp_path / "ran")], make(), ["lease"])
    assert not (tmp_path / "ran").exists()


def test_a_command_whose_lease_is_lost_is_ended_with_75(make: MakeContext, db: Connection, tmp_path: Any) -> None:
    context = make(lease_interval_seconds=0.1)
    script = f"touch {tmp_path}/up; exec sleep 60"
    taker = threading.Thread(
        target=lambda: (until((tmp_path / "up").exists), db.execute("UPDATE key_value SET value = 'thief:1'"))
    )
    taker.start()
    assert run_with_locks(["sh", "-c", script], context, ["lease"]) == 75
    taker.join()


@pytest.mark.parametrize("command", [["/no/such/command"], ["/etc"]])
def test_a_command_that_cannot_be_started_frees_slot_and_lease(
    make: MakeContext, live: Callable[[], set[str]], command: list[str]
) -> None:
    assert run_with_locks(command, make(), BOTH) in (126, 127)
    assert live() == set()
    assert run_with_locks(["true"], make(), BOTH) == 0
    assert live() == {"schedule"}


@pytest.mark.parametrize(("before", "first"), [([], True), (NAMESPACE, False)], ids=["elsewhere", "as PID 1"])
def test_a_schedule_only_run_becomes_the_command_but_not_as_pid_1(
    database_url: str, before: list[str], first: bool
) -> None:
    """As the first process of a container the wrapper has orphans to reap, and a command seldom knows how to."""
    if before and not possible():
        pytest.skip("no PID namespaces to be had")
    command = [
        sys.executable,
        "-m",
        "dislock",
        "--lock-key=job",
        "--schedule=0 0 1 1 *",
        "--time-zone=UTC",
        "DATABASE_URL",
    ]
    script = "echo $$ $PPID"
    done = subprocess.run(
        [*before, "sh", "-c", 'echo $$; exec "$@"', "sh", *command, "sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "DATABASE_URL": database_url},
    )
    assert (done.returncode, done.stderr) == (0, "")
    wrapper, ours, parent = done.stdout.split()
    assert (ours == wrapper) is first
    assert (parent == wrapper) is not first
