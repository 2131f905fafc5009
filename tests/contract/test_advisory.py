"""The strategy advisory: one run at a time, without a table, together with programs that use pg_advisory_lock."""

from __future__ import annotations

import signal
import subprocess

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine

from pg_advisory_lock import PgAdvisoryLock
from tests.support.contract import Dislock
from tests.support.wait import until

pytestmark = pytest.mark.integration

#: Tells that it runs, and waits for the end of its input.
HOLD = ("sh", "-c", "echo ready; cat >/dev/null")
TRAP = ("sh", "-c", "trap 'echo caught; exit 9' TERM; echo ready; sleep 1000 & wait")


@pytest.fixture
def advisory(dislock: Dislock) -> Dislock:
    """The command under test with this strategy, on a database without a table."""
    del dislock.environment["CRON_SCHEDULE"]
    dislock.environment["LOCK_STRATEGY"] = "advisory"
    dislock.sql("DROP TABLE key_value")
    return dislock


def running(advisory: Dislock, *argv: str) -> subprocess.Popen[bytes]:
    process = advisory.start("DATABASE_URL", *argv, stdin=subprocess.PIPE)
    assert advisory.line(process) == "ready"
    return process


@pytest.mark.short
def test_one_run_at_a_time(advisory: Dislock) -> None:
    first = running(advisory, *HOLD)
    second = advisory.run("DATABASE_URL", "echo", "ran")
    assert (second.code, second.out, second.err) == (0, "", "")
    assert advisory.finish(first, b"").code == 0
    assert advisory.run("DATABASE_URL", "echo", "ran").out == "ran\n"


def test_a_waiter_is_served_when_the_lock_is_free(advisory: Dislock) -> None:
    first = running(advisory, *HOLD)
    second = advisory.start("--wait=60", "DATABASE_URL", "echo", "ran")
    until(lambda: advisory.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    assert advisory.finish(first, b"").code == 0
    ran = advisory.finish(second)
    assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")


def test_a_program_that_uses_pg_advisory_lock_takes_the_same_lock(advisory: Dislock) -> None:
    advisory.environment["LOCK_KEY"] = '["billing", "42"]'
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(advisory.url), poolclass=NullPool)
    with engine.begin() as connection:
        PgAdvisoryLock(["billing", "42"]).lock(connection)
        assert advisory.run("DATABASE_URL", "echo", "ran").out == ""
    assert advisory.run("DATABASE_URL", "echo", "ran").out == "ran\n"


def test_a_connection_that_the_server_ends_is_a_loss(advisory: Dislock) -> None:
    process = running(advisory, *TRAP)
    advisory.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    ran = advisory.finish(process)
    assert (ran.code, ran.out) == (75, "caught\n")
    assert ran.err.count("\n") == 1


def test_a_signal_reaches_the_command_and_its_code_is_ours(advisory: Dislock) -> None:
    process = running(advisory, *TRAP)
    process.send_signal(signal.SIGTERM)
    ran = advisory.finish(process)
    assert (ran.code, ran.out, ran.err) == (9, "caught\n", "")
