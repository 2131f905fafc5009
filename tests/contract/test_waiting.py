"""Waiting for a lease, skipping, and ticks that only a success closes."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support.contract import Dislock, Ran
from tests.support.wait import until

pytestmark = pytest.mark.integration

#: Tells that it runs, and ends with the code that it reads.
ASK = ("sh", "-c", "echo ready; read code; exit $code")
HELD = "INSERT INTO key_value VALUES ('cronjob-lock:lease:job', 'other:1', now() + interval '1 hour')"


@pytest.fixture
def success(dislock: Dislock) -> Dislock:
    """The command under test with a tick that is consumed by success."""
    dislock.environment |= {"LOCK_STRATEGY": "schedule,lease", "LOCK_SLOT_CONSUMED_BY": "success"}
    return dislock


def asking(dislock: Dislock, *options: str) -> subprocess.Popen[bytes]:
    process = dislock.start(*options, "DATABASE_URL", *ASK, stdin=subprocess.PIPE)
    assert dislock.line(process) == "ready"
    return process


def waiting(dislock: Dislock, *argv: str) -> subprocess.Popen[bytes]:
    """A start that waits for the lease, and says so."""
    process = dislock.start("--wait=60", "--log-level=INFO", *argv)
    until(lambda: "waiting for it" in dislock.line(process, error=True))
    return process


class TestWaiting:
    @pytest.mark.short
    def test_it_runs_as_soon_as_the_lease_is_free(self, lease: Dislock) -> None:
        first = asking(lease)
        second = waiting(lease, "DATABASE_URL", "echo", "ran")
        assert lease.finish(first, b"0\n").code == 0
        ran = lease.finish(second)
        assert (ran.code, ran.out) == (0, "ran\n")
        assert not lease.rows()["lease:job"].live

    def test_in_vain_it_is_a_warning_and_1(self, lease: Dislock) -> None:
        lease.sql(HELD)
        ran = lease.run("--wait=0.3", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("dislock: warning: gave up after 0 s: cronjob-lock:lease:job is held by other:1")
        assert ran.err.count("\n") == 1

    @pytest.mark.parametrize("code", [0, 99])
    def test_in_vain_it_ends_with_the_code_for_what_was_skipped(self, lease: Dislock, code: int) -> None:
        lease.sql(HELD)
        ran = lease.run("--wait=0.1", f"--skipped-exit-code={code}", "DATABASE_URL", "true")
        assert ran.code == code
        assert ran.err.count("\n") == 1

    def test_a_signal_ends_it_at_once(self, lease: Dislock) -> None:
        lease.sql(HELD)
        process = waiting(lease, "DATABASE_URL", "echo", "ran")
        process.send_signal(signal.SIGTERM)
        ran = lease.finish(process)
        assert (ran.code, ran.out, ran.err) == (128 + signal.SIGTERM, "", "")
        assert lease.rows()["lease:job"].value == "other:1"

    def test_a_slot_is_given_back_when_the_wait_was_in_vain(self, dislock: Dislock) -> None:
        dislock.sql(HELD)
        ran = dislock.run("--strategy=schedule,lease", "--wait=0.1", "DATABASE_URL", "true")
        assert ran.code == 1
        assert not dislock.rows()["schedule:job"].live

    def test_a_slot_is_never_waited_for(self, dislock: Dislock) -> None:
        assert dislock.run("DATABASE_URL", "true").code == 0
        ran = dislock.run("--strategy=schedule,lease", "--wait=60", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out, ran.err) == (0, "", "")

    def test_with_the_strategy_schedule_alone_the_option_is_refused_and_the_variable_has_no_effect(
        self, dislock: Dislock
    ) -> None:
        ran = dislock.run("--wait=5", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (2, "")
        assert "--wait" in ran.err
        ran = dislock.run("DATABASE_URL", "echo", "ran", LOCK_WAIT_SECONDS="5")
        assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")


class TestSkipping:
    @pytest.mark.parametrize("strategy", ["schedule", "lease", "schedule,lease"])
    def test_its_code(self, dislock: Dislock, strategy: str) -> None:
        dislock.environment |= {"LOCK_STRATEGY": strategy, "LOCK_SKIPPED_EXIT_CODE": "99"}
        assert dislock.run("DATABASE_URL", "true").code == 0
        dislock.sql(HELD + " ON CONFLICT (key) DO UPDATE SET value = 'other:1', expire_at = excluded.expire_at")
        ran = dislock.run("DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out, ran.err) == (99, "", "")

    def test_it_replaces_no_code_that_means_anything_else(self, dislock: Dislock) -> None:
        dislock.environment["LOCK_SKIPPED_EXIT_CODE"] = "99"
        unreachable = "postgresql://127.0.0.1:1/d"
        assert dislock.run("--connect-timeout=0.1", "DATABASE_URL", "true", DATABASE_URL=unreachable).code == 1
        assert dislock.run("--table=nowhere", "DATABASE_URL", "true").code == 2
        assert dislock.run("DATABASE_URL", "sh", "-c", "exit 7").code == 7


class TestSuccess:
    def test_a_success_closes_the_tick(self, success: Dislock) -> None:
        told = success.run("DATABASE_URL", "sh", "-c", "echo DISLOCK_SLOT=$DISLOCK_SLOT").told
        assert told["DISLOCK_SLOT"].endswith("-01-01T00:00:00Z")
        rows = success.rows()
        assert rows["schedule:job"].live
        assert not rows["lease:job"].live
        ran = success.run("--log-level=INFO", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (0, "")
        assert f"was completed by {rows['schedule:job'].value}" in ran.err

    @pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
    def test_a_failure_leaves_it_open(self, success: Dislock, command: str, code: int) -> None:
        for _ in range(2):
            ran = success.run("DATABASE_URL", "sh", "-c", command)
            assert (ran.code, ran.err) == (code, "")
            assert not any(row.live for row in success.rows().values())
        assert success.run("DATABASE_URL", "echo", "ran").out == "ran\n"
        assert success.run("DATABASE_URL", "echo", "ran").out == ""

    def test_a_command_that_cannot_be_started_leaves_it_open(self, success: Dislock) -> None:
        assert success.run("DATABASE_URL", "no-such-command").code == 127
        assert success.run("DATABASE_URL", "echo", "ran").out == "ran\n"

    def test_0_after_a_forwarded_signal_closes_it(self, success: Dislock) -> None:
        trap = "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"
        process = success.start("DATABASE_URL", "sh", "-c", trap)
        assert success.line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert success.finish(process).code == 0
        assert success.rows()["schedule:job"].live

    def test_a_start_whose_lease_was_lost_closes_nothing(self, success: Dislock) -> None:
        process = asking(success)
        success.sql(
            "UPDATE key_value SET value = 'thief:1', expire_at = now() + interval '1 hour' WHERE key LIKE '%lease%'"
        )
        ran = success.finish(process, b"0\n")
        assert ran.code == 75
        assert ran.err.count("\n") == 1
        assert "schedule:job" not in success.rows()

    def test_a_success_that_cannot_be_sealed_is_a_warning_and_75(self, success: Dislock) -> None:
        success.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no room'; END$$",
            "CREATE TRIGGER refuse BEFORE INSERT ON key_value FOR EACH ROW"
            " WHEN (NEW.key LIKE '%schedule%') EXECUTE FUNCTION refuse()",
        )
        ran = success.run("--ttl=3", "--kill-grace=0.1", "DATABASE_URL", "true")
        assert ran.code == 75
        assert ran.err.startswith("dislock: warning: the run succeeded, but cronjob-lock:schedule:job was not sealed")
        assert ran.err.count("\n") == 1
        assert not success.rows()["lease:job"].live

    def test_a_waiter_takes_over_from_a_run_that_fails(self, success: Dislock) -> None:
        first = asking(success)
        others = [waiting(success, "DATABASE_URL", "echo", "ran") for _ in range(2)]
        assert success.finish(first, b"7\n").code == 7
        ended = [success.finish(other) for other in others]
        assert [ran.code for ran in ended] == [0, 0]
        assert sorted(ran.out for ran in ended) == ["", "ran\n"]

    def test_a_waiter_takes_over_from_a_host_that_dies(self, success: Dislock, on_this_host: None) -> None:
        first = asking(success, "--ttl=2")
        second = waiting(success, "DATABASE_URL", "echo", "ran")
        os.kill(first.pid, signal.SIGKILL)
        ran = success.finish(second)
        assert (ran.code, ran.out) == (0, "ran\n")
        late = success.run("DATABASE_URL", "echo", "ran")
        assert (late.code, late.out, late.err) == (0, "", "")

    @pytest.mark.parametrize("strategy", ["schedule", "lease"])
    def test_it_needs_both_strategies(self, success: Dislock, strategy: str) -> None:
        ran: Ran = success.run(f"--strategy={strategy}", "DATABASE_URL", "echo", "ran")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("dislock: LOCK_SLOT_CONSUMED_BY success needs the strategies schedule and lease")
        assert ran.err.count("\n") == 1
