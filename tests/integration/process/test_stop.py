"""A stop of a running command: it ends, and nothing takes that back."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.integration.process.harness import (
    PATIENCE,
    alive,
    driver,
    eventually,
    reported,
    running,
    wait_gone,
    wait_pid,
    wait_words,
    words,
)

WITNESS = str(Path(__file__).with_name("witness.py"))


def test_stop_ends_the_command_and_its_group(tmp_path: Path) -> None:
    stop, report = tmp_path / "stop", tmp_path / "report"
    os.mkfifo(stop)
    command = [sys.executable, WITNESS, str(tmp_path), "SIGTERM"]
    with running(driver(*command, stop=stop, report=report, grace=0.3)) as wrapper:
        _, member = [int(wait_words(tmp_path / role, "ready")[1]) for role in ("leader", "member")]
        stop.write_text("now\n")
        # The member would stay for ever.
        wait_words(tmp_path / "member", "SIGTERM")
        assert wrapper.wait(PATIENCE) == 75
        wait_gone(member)
    assert reported(report) == {"pid": wrapper.pid, "code": 40, "stopped": True, "begun": True}


def test_command_that_does_not_listen_is_killed_with_its_group(tmp_path: Path) -> None:
    stop, report = tmp_path / "stop", tmp_path / "report"
    os.mkfifo(stop)
    command = [sys.executable, WITNESS, str(tmp_path)]
    with running(driver(*command, stop=stop, report=report, grace=0.3)) as wrapper:
        pids = [int(wait_words(tmp_path / role, "ready")[1]) for role in ("leader", "member")]
        stop.write_text("now\n")
        assert wrapper.wait(PATIENCE) == 75
        for pid in pids:
            wait_gone(pid)
    assert "SIGTERM" in words(tmp_path / "leader")
    assert reported(report)["code"] == 128 + signal.SIGKILL


def test_stop_is_not_taken_back_by_a_success(tmp_path: Path) -> None:
    stop, report, note = tmp_path / "stop", tmp_path / "report", tmp_path / "pid"
    os.mkfifo(stop)
    script = f"trap 'exit 0' TERM; echo $$ >{note}; while :; do sleep 60 & wait; done"
    with running(driver("sh", "-c", script, stop=stop, report=report)) as wrapper:
        wait_pid(note)
        stop.write_text("now\n")
        assert wrapper.wait(PATIENCE) == 75
    assert reported(report)["code"] == 0
    assert reported(report)["stopped"] is True


def test_stopped_command_can_still_clean_up(tmp_path: Path) -> None:
    stop, note, cleaned = tmp_path / "stop", tmp_path / "pid", tmp_path / "cleaned"
    os.mkfifo(stop)
    script = f"trap 'touch {cleaned}; exit 0' TERM; echo $$ >{note}; while :; do sleep 60 & wait; done"
    with running(driver("sh", "-c", script, stop=stop)) as wrapper:
        command = wait_pid(note)
        os.killpg(command, signal.SIGSTOP)
        eventually(lambda: "T" in Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[0])
        stop.write_text("now\n")
        assert wrapper.wait(PATIENCE) == 75
    assert cleaned.exists()


def test_signals_are_passed_on_during_a_stop(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    os.mkfifo(stop)
    with running(driver(sys.executable, WITNESS, str(tmp_path), stop=stop)) as wrapper:
        leader = int(wait_words(tmp_path / "leader", "ready")[1])
        stop.write_text("now\n")
        wait_words(tmp_path / "leader", "SIGTERM")
        wrapper.send_signal(signal.SIGHUP)
        wait_words(tmp_path / "leader", "SIGHUP")
        os.killpg(leader, signal.SIGKILL)
        assert wrapper.wait(PATIENCE) == 75
    assert words(tmp_path / "leader").count("SIGTERM") == 1


def test_stop_before_the_start_starts_nothing(tmp_path: Path) -> None:
    report, ran = tmp_path / "report", tmp_path / "ran"
    with running(driver("touch", str(ran), stop="now", report=report)) as wrapper:
        assert wrapper.wait(PATIENCE) == 75
    assert reported(report) == {"pid": wrapper.pid, "code": 143, "stopped": True, "begun": False}
    assert not ran.exists()


def test_nobody_of_the_group_outlives_the_wrapper(tmp_path: Path) -> None:
    """The command obeys at once, its children do not: they are killed before the lock would be freed."""
    stop, note = tmp_path / "stop", tmp_path / "pid"
    os.mkfifo(stop)
    script = f"(trap '' TERM; exec sleep 60) & echo $! >{note}; wait"
    with running(driver("sh", "-c", script, stop=stop, grace=0.2)) as wrapper:
        stubborn = wait_pid(note)
        eventually(lambda: "sleep" in Path(f"/proc/{stubborn}/comm").read_text())
        stop.write_text("now\n")
        assert wrapper.wait(PATIENCE) == 75
        eventually(lambda: not alive(stubborn))
