"""The time between the decision to start a command and the moment when it can be signalled, held open.

A slow fork, an exec that hangs on a network file system, or a machine that sleeps makes it as long as it likes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.process.harness import PATIENCE, alive, run, running

#: Code that is to be put around `during`, which is called when the fork is under way and no process is known yet.
HELD_OPEN = """
import os, signal, sys, threading
from dislock.process import child as children, runner
from dislock.errors import Loss, LossReason
sent = {number: threading.Event() for number in signal.valid_signals()}
spawn, send = children.Child._spawn, children.Child.send
def noted(self, number):
    send(self, number)
    sent[number].set()
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
def slow(self, *args):
    during()
    process = spawn(self, *args)
    print(process.pid, flush=True)
    return process
children.Child.send, children.Child._spawn = noted, slow
"""
#: Tells how a supervised command ended, when the thread that forks has ended too.
TOLD = """    print(ended.code, ended.lost)
except KeyboardInterrupt:
    print("interrupted")
for thread in threading.enumerate():
    if thread.name == "dislock-command":
        thread.join()
"""
#: The command ignores SIGTERM from its first moment, because this program does.
DEAF = (
    """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lose = []
try:
    ended = runner.supervise(
        ["sleep", "1000"], environment=None, signals=None, subscribe=lose.append, kill_grace=float(sys.argv[1])
    )
"""
    + TOLD
)
#: When the grace of a loss ends, of an exception with a grace of nothing, and at once after a second exception.
LOSS = "lose[0](Loss(LossReason.TAKEN, 'taken', 0.0)); sent[signal.SIGKILL].wait()"
EXCEPTION = "interrupt(); sent[signal.SIGKILL].wait()"
TWICE = "interrupt(); sent[signal.SIGTERM].wait(); interrupt(); sent[signal.SIGKILL].wait()"


@pytest.mark.parametrize(
    ("during", "grace", "how"),
    [(LOSS, 3600, "137 True"), (EXCEPTION, 0, "interrupted"), (TWICE, 3600, "interrupted")],
)
def test_kill_that_comes_before_the_process_is_not_lost(during: str, grace: float, how: str) -> None:
    code = f"{HELD_OPEN}\ndef during():\n    {during}\n{DEAF}"
    with running([sys.executable, "-c", code, str(grace)], stdout=subprocess.PIPE) as program:
        output, _ = program.communicate(timeout=PATIENCE)
    # After a second exception the program is the first to say something.
    pid, ended = sorted(output.decode().splitlines(), key=lambda line: not line.isdigit())
    assert ended == how
    assert not alive(int(pid))


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        ("lose[0](Loss(LossReason.TAKEN, 'taken', 3600.0))", f"{128 + signal.SIGTERM} True"),
        ("interrupt()", "interrupted"),
    ],
)
def test_what_comes_before_the_fork_prevents_it(cause: str, how: str, tmp_path: Path) -> None:
    """The thread that forks has no time yet: it is on a busy machine."""
    code = f"""
import os, signal, sys, threading
from dislock.process import child as children, runner
from dislock.errors import Loss, LossReason
go = threading.Event()
begin, abandon = children.Child._run, children.Child.abandon
def busy(self):
    {cause}
    go.wait({PATIENCE / 2})
    begin(self)
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
def abandoned(self):
    try:
        return abandon(self)
    finally:
        go.set()
children.Child._run, children.Child.abandon = busy, abandoned
lose, beginning = [], runner.Beginning()
try:
    ended = runner.supervise(
        ["touch", sys.argv[1]], environment=None, signals=None, subscribe=lose.append, kill_grace=1,
        beginning=beginning,
    )
{TOLD}print(beginning.happened)
"""
    assert run([sys.executable, "-c", code, str(tmp_path / "ran")]) == (0, f"{how}\nFalse\n")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("command", "begun"), [("true", True), ("no-such-command-here", False)])
def test_whether_it_has_begun_is_known_after_an_exception_too(command: str, begun: bool) -> None:
    code = f"""{HELD_OPEN}
def during():
    interrupt()
    sent[signal.SIGTERM].wait()
beginning = runner.Beginning()
try:
    runner.supervise(
        [{command!r}], environment=None, signals=None, subscribe=None, kill_grace=1, beginning=beginning
    )
except KeyboardInterrupt:
    print(beginning.happened)
"""
    result, output = run([sys.executable, "-c", code])
    assert (result, output.splitlines()[-1]) == (0, str(begun))


def test_command_goes_on_where_no_further_thread_is_to_be_had() -> None:
    """At a limit on processes the command may have got the last one: it is not ended for want of a listener."""
    code = f"""{HELD_OPEN}
def during():
    threading.stack_size(1 << 46)
with runner.Signals() as signals:
    signals.on_early(lambda: None)
    ended = runner.supervise(["sh", "-c", "exit 7"], environment=None, signals=signals, subscribe=None, kill_grace=1)
raise SystemExit(ended.code)
"""
    result, output = run([sys.executable, "-c", code])
    assert result == 7, output
