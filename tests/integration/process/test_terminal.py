"""At a terminal, under a real interactive shell: as without the wrapper."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.process.harness import (
    ROOT,
    alive,
    driver,
    eventually,
    reported,
    wait_gone,
    wait_pid,
    wait_words,
    words,
)

WITNESS = str(Path(__file__).with_name("witness.py"))
CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"


class Terminal:
    """A pseudo-terminal with a program as the leader of its session."""

    def __init__(self, *argv: str) -> None:
        environment = {**os.environ, "PYTHONPATH": ROOT, "PS1": "$ ", "TERM": "dumb", "HISTFILE": ""}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, environment)
        self.output = b""
        self._over = threading.Event()
        # What nobody reads would block the programs before long.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while not self._over.is_set():
            if not select.select([self.master], [], [], 0.05)[0]:
                continue
            try:
                self.output += os.read(self.master, 4096)
            except OSError:
                return

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def line(self, text: str) -> None:
        self.type(text.encode() + b"\n")

    def hang_up(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            os.close(self.master)

    def close(self) -> None:
        self.hang_up()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    opened = Terminal(*argv)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def shell() -> Iterator[Terminal]:
    if shutil.which("bash") is None:
        pytest.skip("no bash to type into")
    with terminal("bash", "--norc", "--noprofile", "-i") as opened:
        yield opened


def witness(folder: Path, *enders: str) -> list[str]:
    return [sys.executable, WITNESS, str(folder), *enders]


def ready(folder: Path) -> tuple[int, int]:
    leader, member = (int(wait_words(folder / role, "ready")[1]) for role in ("leader", "member"))
    return leader, member


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_key_reaches_the_command_once_and_kill_is_passed_on(shell: Terminal, tmp_path: Path) -> None:
    report = tmp_path / "report"
    shell.line(shlex.join(driver(*witness(tmp_path, "SIGTERM"), report=report)))
    leader, member = ready(tmp_path)
    wrapper = parent(leader)
    assert os.getpgid(leader) == os.getpgid(wrapper)
    expected = []
    for keys, name in ((CTRL_C, "SIGINT"), (CTRL_BACKSLASH, "SIGQUIT"), (CTRL_C, "SIGINT")):
        shell.type(keys)
        expected.append(f"{name}@kernel")
        # Standard signals do not queue: one that comes while the one before is still pending would be lost in it.
        for role in ("leader", "member"):
            eventually(lambda role=role: words(tmp_path / role)[2:] == expected, f"{expected} of the {role}")
    eventually(lambda: not pending(wrapper, signal.SIGINT), "the wrapper took the terminal's signal")
    os.kill(wrapper, signal.SIGINT)
    expected.append("SIGINT")
    eventually(lambda: words(tmp_path / "leader")[2:] == expected, f"{expected}")
    os.kill(wrapper, signal.SIGTERM)
    assert reported(report)["code"] == 40
    assert words(tmp_path / "leader")[2:] == [*expected, "SIGTERM"]
    # The child of the command got what the terminal sent, and not what was sent to the wrapper alone.
    assert words(tmp_path / "member")[2:] == expected[:3]
    os.kill(member, signal.SIGKILL)


def pending(pid: int, number: int) -> bool:
    """Whether a signal to the whole process is still waiting to be taken (proc(5), ShdPnd)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("ShdPnd:")[1].split()[0], 16) >> (number - 1) & 1)


def test_key_in_the_moment_of_the_fork(tmp_path: Path) -> None:
    """The terminal's signal came when there was no command yet to get its share of it: it is passed on."""
    code = """
import signal, sys, time
from pathlib import Path
from dislock.process import child as children, runner
spawn = children.Child._spawn
def late(self, *args):
    Path(sys.argv[1]).touch()
    while signal.SIGINT not in signal.sigpending():
        time.sleep(0.01)
    return spawn(self, *args)
children.Child._spawn = late
with runner.Signals() as signals:
    ended = runner.Run(["sleep", "60"], signals=signals, kill_grace=1).to_its_end()
Path(sys.argv[2]).write_text(f"{ended.code} {ended.interrupted}")
"""
    forking, result = tmp_path / "forking", tmp_path / "result"
    with terminal(sys.executable, "-c", code, str(forking), str(result)) as opened:
        eventually(forking.exists)
        opened.type(CTRL_C)
        eventually(lambda: words(result) == ["130", "True"])


def test_stop_and_foreground_again(shell: Terminal, tmp_path: Path) -> None:
    report = tmp_path / "report"
    shell.line(shlex.join(driver(*witness(tmp_path, "SIGINT"), report=report)))
    leader, _ = ready(tmp_path)
    wrapper = parent(leader)
    for turn in (1, 2):
        shell.type(CTRL_Z)
        eventually(lambda: state(wrapper) == state(leader) == "T", "stop")
        eventually(lambda count=turn: shell.output.count(b"Stopped") == count, "notice of the shell")  # type: ignore[misc] # bound per turn
        shell.line("fg")
        eventually(lambda: state(wrapper) != "T" and state(leader) != "T", "continuation")
        eventually(lambda: os.tcgetpgrp(shell.master) == os.getpgid(wrapper), "foreground")
    shell.type(CTRL_C)
    assert reported(report)["code"] == 40
    assert words(tmp_path / "leader").count("SIGINT@kernel") == 1


def test_command_reads_from_the_terminal(shell: Terminal, tmp_path: Path) -> None:
    note, got = tmp_path / "pid", tmp_path / "got"
    shell.line(shlex.join(driver("sh", "-c", f"echo $$ >{note}; read line; echo $line >{got}")))
    wait_pid(note)
    shell.line("hello")
    eventually(lambda: words(got) == ["hello"])


def test_interrupt_ends_the_shells_loop(shell: Terminal, tmp_path: Path) -> None:
    turns, after = tmp_path / "turns", tmp_path / "after"
    command = shlex.join(driver("sh", "-c", f"echo turn >>{turns}; exec sleep 60"))
    shell.line(f"for i in 1 2 3; do {command}; done")
    eventually(lambda: words(turns) == ["turn"])
    shell.type(CTRL_C)
    shell.line(f"echo $? >{after}")
    eventually(lambda: words(after) == ["130"])
    assert words(turns) == ["turn"]


def test_job_in_the_background_has_a_group_of_its_own(shell: Terminal, tmp_path: Path) -> None:
    report = tmp_path / "report"
    shell.line(shlex.join(driver(*witness(tmp_path, "SIGTERM"), report=report)) + " &")
    leader, member = ready(tmp_path)
    assert os.getpgid(member) == leader
    os.kill(parent(leader), signal.SIGTERM)
    wait_gone(member)
    assert reported(report)["code"] == 40


def test_hang_up_of_a_session_that_the_wrapper_leads(tmp_path: Path) -> None:
    """As in `ssh -t host dislock …`: the kernel tells the leader alone, and its group only when it has ended."""
    with terminal(*driver(*witness(tmp_path, "SIGHUP"))) as opened:
        leader, member = ready(tmp_path)
        assert os.getpgid(leader) == opened.pid
        opened.hang_up()
        wait_words(tmp_path / "leader", "SIGHUP")
        wait_gone(leader)
        wait_gone(opened.pid)
        os.kill(member, signal.SIGKILL)


def test_stop_in_the_foreground_ends_the_command_alone(shell: Terminal, tmp_path: Path) -> None:
    stop, report = tmp_path / "stop", tmp_path / "report"
    os.mkfifo(stop)
    shell.line(shlex.join(driver(*witness(tmp_path), stop=stop, report=report, grace=1)))
    leader, member = ready(tmp_path)
    stop.write_text("now\n")
    assert reported(report)["stopped"] is True
    assert not alive(leader)
    assert "SIGTERM" in words(tmp_path / "leader")
    # Of two signals the one with the lower number is taken first, and SIGTERM's is the lower.
    os.kill(member, signal.SIGCONT)
    wait_words(tmp_path / "member", "SIGCONT")
    assert "SIGTERM" not in words(tmp_path / "member")
    os.kill(member, signal.SIGKILL)
