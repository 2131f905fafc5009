"""The program around a run: what signals do to it before and after, and a machine that has no thread to spare."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.integration.process.harness import PATIENCE, running
from tests.integration.process.test_init import NAMESPACE, needs_namespaces

#: What is not to be reached: the wait before the first connection ends by a signal only.
WAITING = ("--jitter=2678400", "--lock-key=job", "--connect-timeout=60", "DATABASE_URL", "true")
NOWHERE = "postgresql://127.0.0.1:1/nowhere"
#: Sends a signal to the program itself when it comes to load a module.
AT_IMPORT = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Watch())
"""
#: Sends one when the command has ended and its code is known.
AT_END = """
import os, sys
leave = os._exit
def late(code):
    os.kill(os.getpid(), {number})
    leave(code)
os._exit = late
"""
NO_THREAD = """
import threading
threading.stack_size(1 << 46)
"""
PROGRAM = """
from dislock.cli import entry
entry()
"""


def run(before: str, *argv: str, url: str = NOWHERE, first: bool = False) -> tuple[int, str]:
    """Exit code and standard error of the program, with ``before`` run in front of it; ``first``: as PID 1."""
    command = [*(NAMESPACE if first else ()), sys.executable, "-c", before + PROGRAM, *argv]
    with running(command, env={"DATABASE_URL": url}, stderr=subprocess.PIPE) as program:
        _, errors = program.communicate(timeout=PATIENCE)
        return program.returncode, errors.decode()


@pytest.mark.parametrize(
    ("module", "strategy"),
    [
        ("dislock.process.signals", "lease"),
        ("dislock.cli.output", "lease"),
        ("dislock.cli.settings", "lease"),
        ("croniter", "schedule"),
        ("logging", "lease"),
        ("dislock.cli.log", "lease"),
        ("dislock.command", "lease"),
        ("dislock.holding", "lease"),
        ("psycopg", "schedule,lease"),
    ],
)
def test_interrupt_at_any_import_is_130_without_a_word(module: str, strategy: str) -> None:
    before = AT_IMPORT.format(module=module, number=int(signal.SIGINT))
    scheduled = ["--schedule=0 3 * * *"] if "schedule" in strategy else []
    assert run(before, f"--strategy={strategy}", *scheduled, *WAITING) == (130, "")


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_interrupt_at_the_import_of_what_only_tells(argv: list[str]) -> None:
    # Nothing is worth breaking off there; what counts is that nothing is said of it.
    assert run(AT_IMPORT.format(module="dislock.cli.usage", number=int(signal.SIGINT)), *argv) == (0, "")


@needs_namespaces
def test_as_pid_1_a_signal_at_the_start_is_not_lost() -> None:
    # The kernel throws away what the first process of a namespace neither handles nor holds back.
    before = AT_IMPORT.format(module="dislock.cli.settings", number=int(signal.SIGTERM))
    assert run(before, "--strategy=lease", *WAITING, first=True) == (143, "")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_after_the_end_does_not_replace_the_code(number: signal.Signals, database_url: str) -> None:
    argv = ["--strategy=lease", "--lock-key=job", "DATABASE_URL", "sh", "-c", "exit 7"]
    assert run(AT_END.format(number=int(number)), *argv, url=database_url) == (7, "")


def test_no_thread_to_be_had_is_one_line_and_1() -> None:
    code, errors = run(NO_THREAD, "--strategy=lease", *WAITING)
    assert code == 1
    assert errors.startswith("dislock: no thread")
    assert errors.count("\n") == 1


def test_fault_before_there_is_a_log_is_one_line_and_1() -> None:
    before = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "dislock.cli.log":
            raise ImportError("hush-hush")
sys.meta_path.insert(0, Broken())
"""
    assert run(before, "--strategy=lease", *WAITING) == (1, "dislock: unexpected ImportError\n")
