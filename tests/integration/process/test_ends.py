"""How a command starts and ends, and that it finds everything as it came."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.process.harness import PATIENCE, alive, driver, reported, run, running, wait_pid

MODES = pytest.mark.parametrize("mode", ["supervise", "become"])


@MODES
@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_the_commands(mode: str, code: int) -> None:
    assert run(driver("sh", "-c", f"exit {code}", mode=mode)) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_signal_is_128_and_its_number(number: signal.Signals) -> None:
    assert run(driver("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"))[0] == 128 + number


@MODES
def test_command_that_cannot_be_run(mode: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo no\n")
    dangling = tmp_path / "dangling"
    dangling.write_text("#!/no/such/interpreter\n")
    dangling.chmod(0o755)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0")
    foreign.chmod(0o755)
    for name, code, words in [
        ("no-such-command-here", 127, "no such command"),
        ("", 127, "no such command"),
        ("/no/such/file", 127, "No such file"),
        (f"{plain}/below", 127, "Not a directory"),
        (str(plain), 126, "Permission denied"),
        (str(tmp_path), 126, "Permission denied"),
        (str(dangling), 126, "interpreter"),
        (str(foreign), 126, "another kind of machine"),
    ]:
        report = tmp_path / "report"
        assert run(driver(name, "secret", mode=mode, report=report)) == (code, ""), name
        assert words in reported(report)["message"]
        assert "secret" not in reported(report)["message"]


@MODES
def test_script_without_interpreter_line_is_run_by_sh(mode: str, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text('echo "$0 $1 $#"; exit 5\n')
    script.chmod(0o755)
    assert run(driver(str(script), "a b", "c", mode=mode)) == (5, f"{script} a b 2\n")
    path = [(b"PATH".hex(), f"/nowhere:{tmp_path}".encode().hex())]
    assert run(driver("job", mode=mode, environment=path)) == (5, f"{script}  0\n")


@MODES
def test_name_is_looked_up_in_the_path_of_the_commands_environment(mode: str, tmp_path: Path) -> None:
    job = tmp_path / "job-of-its-own"
    job.write_text("#!/bin/sh\necho found\n")
    job.chmod(0o755)
    path = [(b"PATH".hex(), str(tmp_path).encode().hex())]
    assert run(driver(job.name, mode=mode, environment=path)) == (0, "found\n")
    assert run(driver(job.name, mode=mode))[0] == 127
    assert run(driver(job.name, mode=mode), env={"PATH": str(tmp_path)}) == (0, "found\n")


@MODES
def test_environment_is_passed_byte_by_byte(mode: str) -> None:
    pairs = {b"A\xff": b"\xfe\n=x", b"B": b""}
    command = driver("/usr/bin/env", "-0", mode=mode, environment=[(k.hex(), v.hex()) for k, v in pairs.items()])
    assert os.fsencode(run(command)[1]) == b"A\xff=\xfe\n=x\0B=\0"


PROBE = r"""
grep -E '^(Umask|Seccomp|NoNewPrivs|Groups|Cap)' /proc/self/status
ulimit -a; pwd
env | grep -v -e ^_= -e ^PWD= -e ^OLDPWD= | sort
for fd in 0 1 2 3 4 5 6 7 8 9 60; do
    [ ! -e /proc/$$/fd/$fd ] || echo "fd $fd $(readlink /proc/$$/fd/$fd)"
done
"""


def _nothing() -> None:
    pass


def _nohup() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)


def _blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM, signal.SIGVTALRM, signal.SIGUSR2})


def _narrow() -> None:
    os.umask(0o27)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
    os.chdir("/usr")


@MODES
@pytest.mark.parametrize("before", [_nothing, _nohup, _blocked, _narrow])
@pytest.mark.parametrize("closed", [(), (0,), (1,), (0, 1, 2)])
def test_everything_is_as_it_came(
    mode: str, before: Callable[[], None], closed: tuple[int, ...], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    seen = []
    for name in ("alone", "wrapped"):
        result = tmp_path / name
        command = ["sh", "-c", f"({PROBE}) >{result}"]
        if 1 in closed:
            command = ["sh", "-c", f"exec 1>/dev/null 2>&1; ({PROBE}) >{result}"]
        descriptor = os.open(outside, os.O_RDONLY)
        os.dup2(descriptor, 60, inheritable=True)

        def prepare() -> None:
            # What a Python of the tester's changed must not be taken for what came.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            before()
            for number in closed:
                os.close(number)

        argv = driver(*command, mode=mode) if name == "wrapped" else command
        with running(
            argv, pass_fds=[60], preexec_fn=prepare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as p:
            code = p.wait(PATIENCE)
        os.close(descriptor)
        os.close(60)
        assert code == 0
        seen.append(result.read_text())
    assert "Umask" in seen[0]
    assert "fd 60" in seen[0]
    assert seen[1] == seen[0]


@MODES
@pytest.mark.parametrize("before", [_nothing, _nohup, _blocked])
def test_dispositions_and_mask_are_as_they_came(mode: str, before: Callable[[], None], tmp_path: Path) -> None:
    # No shell: it has ideas of its own about both.
    command = ["grep", "-E", "^(Sig|Shd)(Blk|Ign|Cgt|Pnd)", "/proc/self/status"]

    def prepare() -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        before()

    alone = run(command, preexec_fn=prepare)
    assert alone[1].count("\n") == 5
    assert run(driver(*command, mode=mode), preexec_fn=prepare) == alone


def test_arguments_arrive_unchanged() -> None:
    arguments = ["", " ", "a b", "--", "-x", "\udcff", "é", "*", "$HOME"]
    code, output = run(driver("printf", "<%s>", *arguments))
    assert (code, output) == (0, "".join(f"<{a}>" for a in arguments))


def test_daemon_that_the_command_leaves_behind_lives_on(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert run(driver("sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo $! >{note}")) == (0, "")
    daemon = wait_pid(note)
    try:
        assert alive(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_nothing_but_the_interpreter_is_imported_by_become() -> None:
    probe = (
        "import sys; import dislock.process.runner; "
        "print([m for m in ('subprocess', 'ctypes', 'psycopg', 'croniter', 'logging', 'asyncio') if m in sys.modules])"
    )
    assert run([sys.executable, "-c", probe]) == (0, "[]\n")
