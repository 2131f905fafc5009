"""`run_with_locks`: a slot stays taken only if its command has begun, and a command is told of its own locks alone."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest

from dislock import LockContext, run_with_locks
from tests.integration.process.harness import run

pytestmark = pytest.mark.integration

#: A worker whose handler ends it by an exception, as many do; `raised` is called at the place under test.
WORKER = """
import os, signal, sys
from dislock import LockContext, command, holding, run_with_locks
from dislock.process import child as children
def handler(number, frame):
    raise SystemExit(5)
signal.signal(signal.SIGTERM, handler)
def raised(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
{place} = raised
context = LockContext(
    url=sys.argv[1], table_parts=["key_value"], lock_key="job", owner="host:1", run_ttl_seconds=60,
    lease_interval_seconds=10, schedule="0 0 1 1 *", time_zone="UTC",
)
run_with_locks(sys.argv[2:], context, ["schedule", "lease"])
"""


def live(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT key FROM key_value WHERE expire_at > clock_timestamp() ORDER BY key")
        return [key.split(":")[1] for (key,) in rows]


@pytest.mark.parametrize(
    "place",
    [
        "command._supervise",
        "command.command_environment",
        "children._death_signal_setter",
        "holding.Holding.on_loss",
        "children.Child.start",
    ],
)
def test_exception_between_the_locks_and_the_fork_gives_both_back(
    place: str, database_url: str, tmp_path: Path
) -> None:
    code = WORKER.format(place=place)
    assert run([sys.executable, "-c", code, database_url, "touch", str(tmp_path / "ran")]) == (5, "")
    assert live(database_url) == []
    assert not (tmp_path / "ran").exists()


def test_exception_while_the_command_runs_leaves_the_slot_taken(database_url: str, tmp_path: Path) -> None:
    # The command itself sends the signal: by then it has begun.
    script = f"touch {tmp_path}/ran; kill -TERM $PPID; exec sleep 1000"
    code = WORKER.format(place="unused")
    assert run([sys.executable, "-c", code, database_url, "sh", "-c", script]) == (5, "")
    assert live(database_url) == ["schedule"]
    assert (tmp_path / "ran").exists()


def test_what_an_outer_run_told_of_its_locks_is_not_passed_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("LOCK_KEY", "OWNER", "SLOT", "FENCING_TOKEN"):
        monkeypatch.setenv(f"DISLOCK_{name}", "outer")
    monkeypatch.setenv("DISLOCK_PYTHON", "kept")
    context = LockContext(
        url=database_url, table_parts=["key_value"], lock_key="inner", owner="host:1",
        run_ttl_seconds=60, lease_interval_seconds=10,
    )  # fmt: skip
    assert run_with_locks(["env"], context, ["lease"]) == 0
    told = dict(line.split("=", 1) for line in capfd.readouterr().out.splitlines() if line.startswith("DISLOCK_"))
    told = {name: value for name, value in told.items() if not name.startswith("DISLOCK_TEST_")}
    assert int(told.pop("DISLOCK_FENCING_TOKEN"))
    assert told == {"DISLOCK_LOCK_KEY": "inner", "DISLOCK_OWNER": "host:1", "DISLOCK_PYTHON": "kept"}
