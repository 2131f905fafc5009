"""As PID 1 of a container."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.process.harness import PATIENCE, driver, eventually, reported, running, wait_words, words

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
WITNESS = str(Path(__file__).with_name("witness.py"))


def _possible() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not _possible(), reason="no PID namespaces to be had")
pytestmark = needs_namespaces


def first(*command: str, **options: object) -> list[str]:
    return [*NAMESPACE, *driver(*command, **options)]


def outside(pid: int) -> int:
    """The only child of a process, by its number outside of the namespace."""
    text = eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return int(text[0])


ORPHANS = """
import os, sys, time
for _ in range(1000):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
def zombies():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] == "Z":
                    found.append(name)
            except OSError:
                pass
    return found
end = time.monotonic() + 20
while zombies() and time.monotonic() < end:
    time.sleep(0.01)
sys.exit(7 if not zombies() else 1)
"""


def test_a_thousand_orphans_are_reaped() -> None:
    with running(first(sys.executable, "-c", ORPHANS)) as wrapper:
        assert wrapper.wait(PATIENCE) == 7


def test_orphan_is_not_taken_for_the_command(tmp_path: Path) -> None:
    script = "(sh -c 'exit 3' & ) ; (sh -c 'exit 4' &); sleep 0.3; exit 5"
    with running(first("sh", "-c", script)) as wrapper:
        assert wrapper.wait(PATIENCE) == 5


@pytest.mark.parametrize(
    ("numbers", "code"),
    [([signal.SIGTERM], 40), ([signal.SIGUSR1, signal.SIGINT, signal.SIGTERM], 40)],
)
def test_signals_reach_the_command(numbers: Sequence[signal.Signals], code: int, tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = [sys.executable, WITNESS, str(tmp_path), "SIGTERM"]
    with running(first(*command, report=report)) as unshare:
        wait_words(tmp_path / "leader", "ready")
        init = outside(unshare.pid)
        for number in numbers:
            # PID 1 gets no signal that would kill it from within, and those from outside show no sender.
            subprocess.run(["kill", f"-{int(number)}", str(init)], check=True)
            wait_words(tmp_path / "leader", number.name)
        assert unshare.wait(PATIENCE) == code
    assert reported(report)["pid"] == 1
    assert words(tmp_path / "leader")[2:] == [n.name for n in numbers]
