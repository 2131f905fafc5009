"""`Run` without `Signals`, called from a program that has a life of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from dislock.process.outcomes import Ended, NotStarted, Stop
from dislock.process.runner import Run
from tests.integration.process.harness import (
    PATIENCE,
    ROOT,
    driver,
    eventually,
    run,
    running,
    wait_gone,
    wait_pid,
    wait_words,
)

WITNESS = str(Path(__file__).with_name("witness.py"))


def supervised(
    *command: str,
    grace: float = 20.0,
    subscribe: Callable[[Callable[[Stop], None]], None] | None = None,
) -> Ended:
    return Run(command, kill_grace=grace).to_its_end(subscribe=subscribe)


def test_from_the_main_thread_and_from_another() -> None:
    assert supervised("sh", "-c", "exit 3") == Ended(3)
    found = []
    thread = threading.Thread(target=lambda: found.append(supervised("sh", "-c", "exit 4")))
    thread.start()
    thread.join(PATIENCE)
    assert found == [Ended(4)]


def test_many_at_once() -> None:
    found: dict[int, int] = {}

    def work(code: int) -> None:
        found[code] = supervised("sh", "-c", f"exit {code}").code

    threads = [threading.Thread(target=work, args=(code,)) for code in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {code: code for code in range(20)}


def test_process_is_left_as_it_was() -> None:
    def look() -> object:
        handlers = {n: signal.getsignal(n) for n in signal.valid_signals()}
        return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []), sorted(Path("/proc/self/fd").iterdir())

    supervised("true")
    before = look()
    supervised("true")
    with pytest.raises(NotStarted) as error:
        supervised("no-such-command-here")
    assert error.value.code == 127
    assert look() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("dislock")]


def test_stop_before_and_after_the_start(tmp_path: Path) -> None:
    run = Run(["touch", str(tmp_path / "ran")])
    ended = run.to_its_end(subscribe=lambda stop: stop(Stop(20.0)))
    assert (ended, run.begun) == (Ended(128 + signal.SIGTERM, stopped=True), False)
    assert not (tmp_path / "ran").exists()

    def stop_later(stop: Callable[[Stop], None]) -> None:
        def work() -> None:
            wait_pid(tmp_path / "pid")
            stop(Stop(20.0))

        threading.Thread(target=work).start()

    ended = supervised("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60", subscribe=stop_later)
    assert ended == Ended(128 + signal.SIGTERM, stopped=True)


@pytest.mark.parametrize("command", [[], "true"])
def test_command_that_is_none(command: list[str]) -> None:
    with pytest.raises(ValueError, match="command"):
        Run(command)


def test_command_that_the_system_cannot_even_be_asked_for() -> None:
    with pytest.raises(NotStarted, match="null byte") as caught:
        supervised("a\0b")
    assert caught.value.code == 126


def test_exception_while_waiting_ends_the_command(tmp_path: Path) -> None:
    command = [sys.executable, WITNESS, str(tmp_path), "SIGTERM"]
    code = f"""
import sys
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Run
try:
    Run({command!r}, kill_grace=0.2).to_its_end()
except KeyboardInterrupt:
    print("interrupted")
"""
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        pids = [int(wait_words(tmp_path / role, "ready")[1]) for role in ("leader", "member")]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert output == b"interrupted\n"
    wait_words(tmp_path / "leader", "SIGTERM")
    for pid in pids:
        wait_gone(pid)


def test_second_exception_kills_at_once(tmp_path: Path) -> None:
    command = [sys.executable, WITNESS, str(tmp_path)]
    with running(driver(*command, mode="library", grace=3600)) as process:
        leader = int(wait_words(tmp_path / "leader", "ready")[1])
        process.send_signal(signal.SIGINT)
        wait_words(tmp_path / "leader", "SIGTERM")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        wait_gone(leader)


def test_interrupt_at_any_moment_leaves_nothing_behind(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Run
Run(["true"]).to_its_end()
interrupted = 0
for turn in range(150):
    def interrupt():
        time.sleep(turn * 0.00006)
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    try:
        try:
            thread.start()
            Run(["sleep", "0.02"], kill_grace=20.0).to_its_end()
        finally:
            thread.join()
            time.sleep(0)
    except KeyboardInterrupt:
        interrupted += 1
    for _ in range(400):
        if not [t for t in threading.enumerate() if t.name == "dislock-command"]:
            break
        time.sleep(0.005)
    try:
        sys.exit(f"left behind: {{os.waitpid(-1, os.WNOHANG)}}")
    except ChildProcessError:
        pass
print(interrupted)
"""
    code_, output = run([sys.executable, "-W", "error", "-c", code])
    assert (code_, output) == (0, "150\n")


def test_exit_status_taken_by_somebody_else_is_no_success() -> None:
    code = f"""
import signal, sys
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    Run(["true"]).to_its_end()
except ChildProcessError as error:
    print(error.strerror)
"""
    result, output = run([sys.executable, "-W", "error", "-c", code])
    assert result == 0
    assert "took its exit status" in output


def test_children_of_the_program_are_left_alone() -> None:
    with subprocess.Popen(["sh", "-c", "exit 9"]) as other:
        assert supervised("sleep", "0.05").code == 0
        assert other.wait(PATIENCE) == 9


def test_no_warning_about_a_fork_among_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert supervised("true").code == 0
    finally:
        stop.set()
        thread.join()


def test_command_dies_with_a_killed_program(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells a child of its parent's death")
    note = tmp_path / "pid"
    with running(driver("sh", "-c", f"echo $$ >{note}; exec sleep 60", mode="library")) as program:
        command = wait_pid(note)
        program.kill()
        wait_gone(command)


def test_command_outlives_the_thread_that_is_not_the_one_that_waits(tmp_path: Path) -> None:
    """The parent-death signal follows a thread: it must not be one that ends before the command."""
    note = tmp_path / "pid"
    found: list[int] = []

    def work() -> None:
        found.append(supervised("sh", "-c", f"echo $$ >{note}; sleep 0.3; exit 6").code)

    thread = threading.Thread(target=work)
    thread.start()
    wait_pid(note)
    eventually(lambda: found, "end")
    thread.join()
    assert found == [6]
