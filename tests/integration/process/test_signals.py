"""Signals to the wrapper: every one reaches the command or keeps it from starting."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dislock.process.signals import ENDING, MESSAGES
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


def witness(folder: Path, *enders: str) -> list[str]:
    return [sys.executable, WITNESS, str(folder), *enders]


def ready(folder: Path, *roles: str) -> list[int]:
    return [int(wait_words(folder / role, "ready")[1]) for role in roles or ("leader", "member")]


@pytest.mark.parametrize("number", ENDING)
def test_signals_that_ask_to_end_go_to_the_whole_group(number: signal.Signals, tmp_path: Path) -> None:
    with running(driver(*witness(tmp_path))) as wrapper:
        leader, member = ready(tmp_path)
        assert os.getpgid(leader) == os.getpgid(member) == leader
        wrapper.send_signal(number)
        wait_words(tmp_path / "leader", number.name)
        wait_words(tmp_path / "member", number.name)
        os.killpg(leader, signal.SIGKILL)
        assert wrapper.wait(PATIENCE) == 128 + signal.SIGKILL


def test_messages_go_to_the_command_alone(tmp_path: Path) -> None:
    with running(driver(*witness(tmp_path))) as wrapper:
        leader, _ = ready(tmp_path)
        for number in MESSAGES:
            wrapper.send_signal(number)
            wait_words(tmp_path / "leader", number.name)
        wrapper.send_signal(signal.SIGTERM)
        wait_words(tmp_path / "member", "SIGTERM")
        assert words(tmp_path / "member")[2:] == ["SIGTERM"]
        os.killpg(leader, signal.SIGKILL)
        assert wrapper.wait(PATIENCE) == 128 + signal.SIGKILL


def test_what_is_left_of_the_group_is_killed_after_a_signal(tmp_path: Path) -> None:
    report = tmp_path / "report"
    with running(driver(*witness(tmp_path, "SIGUSR1"), report=report, grace=0.2)) as wrapper:
        _, member = ready(tmp_path)
        wrapper.send_signal(signal.SIGTERM)
        wait_words(tmp_path / "leader", "SIGTERM")
        # Nobody but the sender decides how long the command may take.
        assert alive(member)
        wrapper.send_signal(signal.SIGUSR1)
        assert wrapper.wait(PATIENCE) == 40
        wait_gone(member)
    assert reported(report)["stopped"] is False


def test_program_behind_a_shell_can_clean_up(tmp_path: Path) -> None:
    """The shell ends by the signal at once; the program that it started is given the time that it needs, not more."""
    note, cleaned = tmp_path / "pid", tmp_path / "cleaned"
    # Not until its sleep is another program does it say that it is ready: what the shell forks for it is deaf at first.
    asleep = f"sh -c 'echo $$ >{note}; exec sleep 60'"
    program = f"trap 'sleep 0.3; touch {cleaned}; exit' TERM; {asleep} & wait"
    started = time.monotonic()
    with running(driver("sh", "-c", f"sh -c {shlex.quote(program)}; echo unreachable", grace=3600)) as wrapper:
        wait_pid(note)
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(PATIENCE) == 128 + signal.SIGTERM
    assert cleaned.exists()
    assert time.monotonic() - started < PATIENCE


def test_what_is_left_of_the_group_lives_on_without_a_signal(tmp_path: Path) -> None:
    with running(driver(*witness(tmp_path, "SIGUSR1"))) as wrapper:
        _, member = ready(tmp_path)
        wrapper.send_signal(signal.SIGUSR1)
        assert wrapper.wait(PATIENCE) == 40
        assert alive(member)
        os.kill(member, signal.SIGKILL)


def test_signal_that_came_ignored_stays_ignored(tmp_path: Path) -> None:
    argv = ["nohup", *driver(*witness(tmp_path, "SIGTERM"))]
    with running(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as wrapper:
        ready(tmp_path)
        wrapper.send_signal(signal.SIGHUP)
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(PATIENCE) == 40
        assert words(tmp_path / "leader")[2:] == ["SIGTERM"]


@pytest.mark.parametrize("mode", ["supervise", "become"])
@pytest.mark.parametrize("number", ENDING)
def test_signal_before_the_start_keeps_the_command_from_starting(
    mode: str, number: signal.Signals, tmp_path: Path
) -> None:
    hold, report, ran = tmp_path / "hold", tmp_path / "report", tmp_path / "ran"
    os.mkfifo(hold)
    argv = driver("touch", str(ran), mode=mode, early=tmp_path / "early", hold=hold, report=report)
    with running(argv) as wrapper:
        eventually((tmp_path / "early").exists)
        wrapper.send_signal(number)
        # Told while the program was busy with something else.
        assert eventually(lambda: report.exists() and reported(report).get("early")) is True
        hold.write_text("")
        assert wrapper.wait(PATIENCE) == 128 + number
    assert reported(report)["interrupted"] == number
    assert not ran.exists()


@pytest.mark.parametrize("mode", ["supervise", "become"])
def test_message_before_the_start_reaches_the_command(mode: str, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    argv = driver("sleep", "60", mode=mode, early=tmp_path / "early", hold=hold)
    with running(argv) as wrapper:
        eventually((tmp_path / "early").exists)
        wrapper.send_signal(signal.SIGUSR1)
        hold.write_text("")
        # A command that has no handler yet dies of it, as it would without the wrapper.
        assert wrapper.wait(PATIENCE) in (128 + signal.SIGUSR1, -signal.SIGUSR1)


@pytest.mark.parametrize("mode", ["supervise", "become"])
def test_no_signal_is_lost_at_any_moment_of_the_start(mode: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    endings = set()
    for turn in range(40):
        report, started = tmp_path / f"report{turn}", tmp_path / f"started{turn}"
        early, hold = tmp_path / f"early{turn}", tmp_path / f"hold{turn}"
        os.mkfifo(hold)
        command = ["sh", "-c", f"echo >{started}; exec sleep 60"]
        argv = driver(*command, mode=mode, report=report, early=early, hold=hold)
        number = dice.choice(ENDING)
        with running(argv, stderr=subprocess.DEVNULL) as wrapper:
            eventually(early.exists)
            hold.write_text("")
            time.sleep(dice.uniform(0, 0.03 if mode == "supervise" else 0.003))
            wrapper.send_signal(number)
            code = wrapper.wait(PATIENCE)
        # The wrapper ends at once, in one of two ways: nothing was started, or the command died of the signal.
        told = json.loads(report.read_text()) if report.exists() else {}
        if "interrupted" in told:
            assert (told["interrupted"], code) == (number, 128 + number)
            assert not started.exists()
            endings.add("interrupted")
        else:
            assert code == (-number if mode == "become" else 128 + number)
            endings.add("passed on")
    print(endings)


def test_signal_in_the_moment_of_the_fork(tmp_path: Path) -> None:
    """The window itself, held open: a signal that arrives between the last look and the fork."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from dislock.process import child as children, runner
spawn = children.Child._spawn
def late(self, *args):
    os.kill(os.getpid(), signal.SIGTERM)
    return spawn(self, *args)
children.Child._spawn = late
with runner.Signals() as signals:
    print(runner.Run(["sleep", "60"], signals=signals, kill_grace=1).to_its_end())
"""
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE) as wrapper:
        output, _ = wrapper.communicate(timeout=PATIENCE)
    assert output.decode().startswith("Ended(code=143, stopped=False")


def test_signal_after_the_end_changes_nothing(tmp_path: Path) -> None:
    code = """
import os, signal
from dislock.process.runner import Run, Signals
with Signals() as signals:
    ended = Run(["true"], signals=signals).to_its_end()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(os.getpid(), number)
raise SystemExit(ended.code)
"""
    with running([sys.executable, "-c", code]) as wrapper:
        assert wrapper.wait(PATIENCE) == 0


def test_wrapper_killed_takes_its_command_along(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells a child of its parent's death")
    note = tmp_path / "pid"
    with running(driver("sh", "-c", f"echo $$ >{note}; exec sleep 60")) as wrapper:
        command = wait_pid(note)
        wrapper.kill()
        wait_gone(command)


def test_nothing_wakes_up_while_the_command_sleeps(tmp_path: Path) -> None:
    import shutil

    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace, note = tmp_path / "trace", tmp_path / "pid"
    stop = tmp_path / "stop"
    os.mkfifo(stop)
    command = driver("sh", "-c", f"echo $$ >{note}; exec sleep 2", stop=stop)
    with running(["strace", "-f", "-tt", "-o", str(trace), *command]) as wrapper, stop.open("w"):
        wait_pid(note)
        assert wrapper.wait(PATIENCE) == 0
    lines = [line.split(maxsplit=2) for line in trace.read_text().splitlines()]
    moments = [_seconds(line[1]) for line in lines]
    begin = next(t for t, line in zip(moments, lines, strict=True) if "clock_nanosleep" in line[2])
    quiet = [line for t, line in zip(moments, lines, strict=True) if begin + 0.5 < t < begin + 1.8]
    assert quiet == []


def _seconds(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def test_where_the_system_does_not_say_who_sent_a_signal(tmp_path: Path) -> None:
    """As on macOS: no sigwaitinfo, no parent-death signal."""
    code = f"""
import signal, sys
del signal.sigwaitinfo
sys.platform = "darwin"
from dislock.process.runner import Run, Signals
with Signals() as signals:
    ended = Run({witness(tmp_path)!r}, signals=signals, kill_grace=0.1).to_its_end()
raise SystemExit(ended.code)
"""
    with running([sys.executable, "-c", code]) as wrapper:
        leader, _ = ready(tmp_path)
        for number in (*ENDING, *MESSAGES):
            wrapper.send_signal(number)
            wait_words(tmp_path / "leader", number.name)
        os.killpg(leader, signal.SIGKILL)
        assert wrapper.wait(PATIENCE) == 128 + signal.SIGKILL
