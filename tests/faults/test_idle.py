"""A lease that idles costs nothing: no polling, no wake-up before the next renewal."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.conftest import LEASE, Start
from tests.faults.wrapper import PATIENCE
from tests.support.need import need, need_program
from tests.support.wait import until

pytestmark = pytest.mark.integration
#: The one place where time has to pass: that nothing happens can only be seen by looking on for a while.
LOOK_ON_SECONDS = 3.0


def test_one_look_at_the_clock_in_a_second_between_renewals(start: Start, database_url: str, tmp_path: Path) -> None:
    strace = need_program("strace")
    run = start(database_url, LEASE, {"RUN_LOCK_TTL_SECONDS": 3600, "LOCK_LEASE_INTERVAL": 1000}).up()
    until(lambda: asleep(run.pid), PATIENCE, "all threads asleep")
    log = tmp_path / "trace"
    with (tmp_path / "said").open("w+b") as said:
        tracer = subprocess.Popen([strace, "-f", "-p", str(run.pid), "-o", str(log)], stderr=said)
        try:
            attached = until(lambda: "attached" in (tmp_path / "said").read_text() or tracer.poll() is not None)
            need(attached and tracer.poll() is None, "no right to trace a process: allow ptrace")
            # Being attached to interrupts what each thread waits in; it goes on waiting with the same call.
            until(lambda: asleep(run.pid), PATIENCE, "all threads asleep again")
            before = len(log.read_text().splitlines())
            time.sleep(LOOK_ON_SECONDS)
            calls = log.read_text().splitlines()[before:]
        finally:
            tracer.terminate()
            tracer.wait()
    # A wait that a suspended machine would prolong is slept in slices of a second.
    assert all("futex" in call or "restart_syscall" in call for call in calls), calls
    assert len(calls) <= 2 * (LOOK_ON_SECONDS + 1), calls
    assert run.tell().ended() == (0, "")


def asleep(pid: int) -> bool:
    threads = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return len(threads) > 1 and all(thread.rpartition(")")[2].split()[0] == "S" for thread in threads)
