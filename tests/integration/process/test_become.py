"""Turning into the command: nothing of the wrapper is left, and a failure leaves everything as it was."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.process.harness import PATIENCE, ROOT, driver, run, running, wait_pid


def test_command_has_the_wrappers_place(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with running(driver("sh", "-c", f"echo $$ >{note}; exec sleep 60", mode="become")) as wrapper:
        assert wait_pid(note) == wrapper.pid
        threads = list(Path(f"/proc/{wrapper.pid}/task").iterdir())
        assert len(threads) == 1
        # Nobody stands between the sender and the command.
        wrapper.send_signal(signal.SIGTERM)
        assert wrapper.wait(PATIENCE) == -signal.SIGTERM


def test_output_written_before_is_not_lost() -> None:
    code = f"""
import sys
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Signals, become
print("before")
with Signals() as signals:
    become(["echo", "after"], None, signals)
"""
    assert run([sys.executable, "-c", code]) == (0, "before\nafter\n")


def test_failure_leaves_everything_as_it_was() -> None:
    code = f"""
import os, signal, sys, threading
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Interrupted, Signals, become
from dislock.process.outcomes import NotStarted
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def look():
    mask = sorted(int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return mask, [signal.getsignal(n) for n in sorted(signal.valid_signals())]
outside = look()
with Signals() as signals:
    inside = look()
    assert inside != outside
    try:
        become(["/no/such/command"], None, signals)
    except NotStarted as error:
        assert error.code == 127
    assert look() == inside
    told = threading.Event()
    signals.on_ending(told.set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert told.wait(20), "nobody listens any more"
    try:
        become(["true"], None, signals)
    except Interrupted as error:
        assert error.number == signal.SIGTERM
    assert look() == inside
assert look() == outside
print("good")
"""
    assert run([sys.executable, "-W", "error", "-c", code]) == (0, "good\n")


def test_command_that_does_not_exist_where_no_thread_is_to_be_had() -> None:
    code = """
import threading
from dislock.process.outcomes import NotStarted
from dislock.process.runner import Signals, become
with Signals() as signals:
    signals.on_ending(lambda: None)
    threading.stack_size(1 << 46)
    try:
        become(["/no/such/command"], None, signals)
    except NotStarted as error:
        print(error.code)
"""
    assert run([sys.executable, "-c", code]) == (0, "127\n")


def test_signal_that_is_pending_when_the_command_would_start() -> None:
    """Arrived, and not yet taken by the listening thread: the last look finds it."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {ROOT!r})
from dislock.process.runner import Interrupted, Signals, become
with Signals() as signals:
    signals.hand_on(None)
    os.kill(os.getpid(), signal.SIGHUP)
    try:
        become(["true"], None, signals)
    except Interrupted as error:
        print(error.number)
"""
    assert run([sys.executable, "-c", code]) == (0, "1\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("when", ["before", "after the first look"])
def test_no_signal_ends_the_process_between_the_slot_and_the_command(number: signal.Signals, when: str) -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {ROOT!r})
from dislock.process import runner
from dislock.process.runner import Interrupted, Signals, become
kill = lambda: os.kill(os.getpid(), {int(number)})
with Signals() as signals:
    if {when!r} == "before":
        kill()
    else:
        runner.flush_output = kill
    try:
        become(["true"], None, signals)
    except Interrupted as error:
        print(error.number)
"""
    assert run([sys.executable, "-c", code]) == (0, f"{int(number)}\n")


def test_group_and_session_stay(tmp_path: Path) -> None:
    code, output = run(driver(sys.executable, "-c", "import os; print(os.getpgrp(), os.getsid(0))", mode="become"))
    assert code == 0
    assert len(set(output.split())) == 1
    assert os.getsid(0) != int(output.split()[0])
