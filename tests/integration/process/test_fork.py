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
from dislock.process.outcomes import Stop
decided = {"stop": threading.Event(), "kill": threading.Event()}
spawn = children.Child._spawn
def noted(name):
    method = getattr(children.Child, name)
    def call(self):
        method(self)
        decided[name].set()
    setattr(children.Child, name, call)
noted("stop"), noted("kill")
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
def slow(self, *args):
    during()
    process = spawn(self, *args)
    print(process.pid, flush=True)
    return process
children.Child._spawn = slow
"""
#: Tells how a supervised command ended, when the thread that forks has ended too.
TOLD = """    print(ended.code, ended.stopped)
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
stops = []
try:
    ended = runner.Run(["sleep", "1000"], kill_grace=float(sys.argv[1])).to_its_end(subscribe=stops.append)
"""
    + TOLD
)
#: When the grace of a stop ends, of an exception with a grace of nothing, and at once after a second exception.
STOP = "stops[0](Stop(0.0)); decided['kill'].wait()"
EXCEPTION = "interrupt(); decided['kill'].wait()"
TWICE = "interrupt(); decided['stop'].wait(); interrupt(); decided['kill'].wait()"


@pytest.mark.parametrize(
    ("during", "grace", "how"),
    [(STOP, 3600, "137 True"), (EXCEPTION, 0, "interrupted"), (TWICE, 3600, "interrupted")],
)
def test_kill_that_comes_before_the_process_is_not_lost(during: str, grace: float, how: str) -> None:
    code = f"{HELD_OPEN}\ndef during():\n    {during}\n{DEAF}"
    with running([sys.executable, "-c", code, str(grace)], stdout=subprocess.PIPE) as program:
        output, _ = program.communicate(timeout=PATIENCE)
    # After a second exception the program is the first to say something.
    pid, ended = sorted(output.decode().splitlines(), key=lambda line: not line.isdigit())
    assert ended == how
    assert not alive(int(pid))


def test_a_stop_before_the_start_is_reported_sends_one_sigterm() -> None:
    code = f"""{HELD_OPEN}
def during():
    pass
make, send, sent = children.Child.__init__, children.Child.send, []
def told_late(self, *args, report, **options):
    def late(event):
        if isinstance(event, children.Started):
            stops[0](Stop(3600.0))
            decided["stop"].wait()
        report(event)
    make(self, *args, report=late, **options)
def noted(self, number):
    sent.append(int(number))
    send(self, number)
children.Child.__init__, children.Child.send = told_late, noted
stops = []
ended = runner.Run(["sleep", "1000"]).to_its_end(subscribe=stops.append)
print(ended.code, sent.count(signal.SIGTERM))
"""
    result, output = run([sys.executable, "-c", code])
    assert (result, output.splitlines()[-1]) == (0, "143 1"), output


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        ("stops[0](Stop(3600.0))", f"{128 + signal.SIGTERM} True"),
        ("interrupt()", "interrupted"),
    ],
)
def test_what_comes_before_the_fork_prevents_it(cause: str, how: str, tmp_path: Path) -> None:
    """The thread that forks has no time yet: it is on a busy machine."""
    code = f"""
import os, signal, sys, threading
from dislock.process import child as children, runner
from dislock.process.outcomes import Stop
go = threading.Event()
begin, prevent = children.Child._run, children.Child.prevent
def busy(self):
    {cause}
    go.wait({PATIENCE / 2})
    begin(self)
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
def prevented(self):
    try:
        return prevent(self)
    finally:
        go.set()
children.Child._run, children.Child.prevent = busy, prevented
stops, run = [], runner.Run(["touch", sys.argv[1]], kill_grace=1)
try:
    ended = run.to_its_end(subscribe=stops.append)
{TOLD}print(run.begun)
"""
    assert run([sys.executable, "-c", code, str(tmp_path / "ran")]) == (0, f"{how}\nFalse\n")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("command", "begun"), [("true", True), ("no-such-command-here", False)])
def test_whether_it_has_begun_is_known_after_an_exception_too(command: str, begun: bool) -> None:
    code = f"""{HELD_OPEN}
def during():
    interrupt()
    decided["stop"].wait()
run = runner.Run([{command!r}], kill_grace=1)
try:
    run.to_its_end()
except KeyboardInterrupt:
    print(run.begun)
"""
    result, output = run([sys.executable, "-c", code])
    assert (result, output.splitlines()[-1]) == (0, str(begun))


def test_command_goes_on_where_no_further_thread_is_to_be_had() -> None:
    """At a limit on processes the command may have got the last one: it is not ended for want of a listener."""
    code = f"""{HELD_OPEN}
def during():
    threading.stack_size(1 << 46)
with runner.Signals() as signals:
    signals.on_ending(lambda: None)
    ended = runner.Run(["sh", "-c", "exit 7"], signals=signals).to_its_end()
raise SystemExit(ended.code)
"""
    result, output = run([sys.executable, "-c", code])
    assert result == 7, output
