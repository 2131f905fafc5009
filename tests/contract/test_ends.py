"""What ends a run before its time: signals, and the loss of a lease."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.contract import Dislock
from tests.support.wait import until

pytestmark = pytest.mark.integration

#: Tells that it runs, and waits for the end of its input.
WAIT = ("sh", "-c", "echo ready; cat >/dev/null; echo done")
#: Tells that it runs, and what ended it.
TRAP = ("sh", "-c", "trap 'echo caught; exit 9' TERM INT HUP; echo ready; sleep 1000 & wait")
#: Hears no signal that it can do without.
DEAF = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
STEAL = "UPDATE key_value SET value = 'thief:1', expire_at = now() + interval '1 hour' WHERE key LIKE '%:lease:%'"
FAST = ("--ttl=3", "--interval=0.1", "--kill-grace=0.3")


def running(lease: Dislock, *argv: str) -> subprocess.Popen[bytes]:
    process = lease.start(*argv, stdin=subprocess.PIPE)
    assert lease.line(process) == "ready"
    return process


class TestLoss:
    @pytest.mark.short
    @pytest.mark.parametrize("change", [STEAL, "DELETE FROM key_value"])
    def test_the_command_is_ended_and_75(self, lease: Dislock, change: str) -> None:
        process = running(lease, *FAST, "DATABASE_URL", *TRAP)
        lease.sql(change)
        ran = lease.finish(process)
        assert (ran.code, ran.out) == (75, "caught\n")
        assert ran.err.startswith("dislock: ")
        assert ran.err.count("\n") == 1

    def test_one_that_does_not_listen_is_killed(self, lease: Dislock) -> None:
        process = running(lease, *FAST, "DATABASE_URL", *DEAF)
        lease.sql(STEAL)
        assert lease.finish(process).code == 75

    def test_the_thiefs_row_is_left_alone(self, lease: Dislock) -> None:
        process = running(lease, *FAST, "DATABASE_URL", *TRAP)
        lease.sql(STEAL)
        lease.finish(process)
        row = lease.rows()["lease:job"]
        assert (row.value, row.live) == ("thief:1", True)

    def test_continue_only_logs(self, lease: Dislock) -> None:
        process = running(lease, *FAST, "--on-lease-loss=continue", "DATABASE_URL", *WAIT)
        lease.sql(STEAL)
        assert lease.line(process, error=True).startswith("dislock: warning: ")
        ran = lease.finish(process, b"")
        assert (ran.code, ran.out, ran.err) == (0, "done\n", "")

    def test_an_end_before_the_next_renewal_is_no_success(self, lease: Dislock) -> None:
        process = running(lease, "DATABASE_URL", *WAIT)
        lease.sql(STEAL)
        ran = lease.finish(process, b"")
        assert (ran.code, ran.out) == (75, "done\n")
        assert ran.err.count("\n") == 1


class TestSignals:
    @pytest.mark.short
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_they_reach_the_command_and_the_lease_is_freed(self, lease: Dislock, number: int) -> None:
        process = running(lease, "--kill-grace=0.3", "DATABASE_URL", *TRAP)
        process.send_signal(number)
        ran = lease.finish(process)
        assert (ran.code, ran.out, ran.err) == (9, "caught\n", "")
        assert not lease.rows()["lease:job"].live

    def test_death_by_one_is_128_and_its_number(self, lease: Dislock) -> None:
        process = running(lease, "DATABASE_URL", "sh", "-c", "echo ready; exec sleep 100")
        process.send_signal(signal.SIGTERM)
        ran = lease.finish(process)
        assert (ran.code, ran.err) == (143, "")
        assert not lease.rows()["lease:job"].live

    def test_the_lease_lasts_until_the_command_is_gone(self, lease: Dislock) -> None:
        # Some shells report the death of their sleep.
        command = "exec 2>/dev/null; trap 'echo caught; read line; exit 9' TERM; echo ready; sleep 1000 & wait"
        process = running(lease, *FAST, "DATABASE_URL", "sh", "-c", command)
        process.send_signal(signal.SIGTERM)
        assert lease.line(process) == "caught"
        before = lease.rows()["lease:job"].expires
        until(lambda: lease.rows()["lease:job"].expires > before)
        ran = lease.finish(process, b"go\n")
        assert (ran.code, ran.err) == (9, "")
        assert not lease.rows()["lease:job"].live

    @pytest.mark.parametrize("strategy", ["schedule", "lease", "schedule,lease"])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_before_the_command_they_end_the_wait(self, dislock: Dislock, strategy: str, number: int) -> None:
        table = dislock.sql("SELECT 'key_value'::regclass::oid")[0][0]
        waiting = f"SELECT 1 FROM pg_locks WHERE relation = {table} AND NOT granted"
        # Somebody else's lock on the table holds the acquisition up, at a known place.
        import psycopg

        with psycopg.connect(dislock.url) as other:
            other.execute("LOCK TABLE key_value IN ACCESS EXCLUSIVE MODE")
            process = dislock.start(f"--strategy={strategy}", "DATABASE_URL", "echo", "ran")
            until(lambda: dislock.sql(waiting))
            process.send_signal(number)
            ran = dislock.finish(process)
            other.rollback()
        assert (ran.code, ran.out) == (128 + number, "")
        # The statement that was on its way was cancelled, which needs psycopg 3.2 and libpq 17: with older ones it
        # comes through after the end (docs/concepts.md).
        if hasattr(psycopg.Connection, "cancel_safe") and psycopg.pq.version() >= 170000:
            until(lambda: not any(row.live for row in dislock.rows().values()))

    def test_during_the_jitter(self, dislock: Dislock) -> None:
        process = dislock.start("--jitter=2678400", "--log-level=DEBUG", "DATABASE_URL", "echo", "ran")
        # Told when signals are held back already, just before the wait.
        assert "asking for" in dislock.line(process, error=True)
        process.send_signal(signal.SIGTERM)
        ran = dislock.finish(process)
        assert (ran.code, ran.out) == (143, "")
        assert dislock.rows() == {}
