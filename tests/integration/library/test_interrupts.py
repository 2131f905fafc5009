"""Exceptions from signal handlers at any moment, and the end of the interpreter: nothing is held for nobody."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import dislock
from dislock import LeaseLock
from tests.integration.library.conftest import MakeContext
from tests.support.wait import until

pytestmark = pytest.mark.integration
OURS = str(Path(dislock.__file__).parent)
#: How many interrupts at moments that nobody chose.
INTERRUPTS = 60
#: Every which place is interrupted; 1 takes half a minute.
STEP = int(os.environ.get("INTERRUPT_STEP", "5"))


class Interrupted(BaseException):
    """What a signal handler raises."""


class Walk:
    """Raises before the ``at``-th line of this package that the thread which uses a lock comes to."""

    def __init__(self, at: int) -> None:
        self.at, self.passed = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_name == "__del__":
            return None
        if event == "line":
            self.passed += 1
            if self.passed == self.at:
                sys.settrace(None)
                raise Interrupted
        return self


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dislock")]


@pytest.fixture
def nothing_left(live: Callable[[], set[str]], connections: Callable[[], int]) -> Callable[[str], None]:
    def check(where: str) -> None:
        if live():
            gc.collect()
        until(lambda: not (live() or threads() or connections()), what=f"nothing is left, {where}")

    return check


def use(make: MakeContext, walk: Walk) -> bool:
    """Whether a lock was used without being interrupted."""
    lock = LeaseLock(make())
    before = sys.gettrace()
    try:
        sys.settrace(walk)
        with lock:
            pass
    except Interrupted:
        return False
    finally:
        sys.settrace(before)
    return True


# psycopg's own code is not walked through: it runs in the thread of the leases, which no signal reaches.
def test_an_exception_before_any_line_leaves_nothing_behind(
    make: MakeContext, nothing_left: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    for at in range(1, 10_000, STEP):
        if use(make, Walk(at)):
            break
        nothing_left(f"interrupted at line {at}")
    assert 200 < at < 9_999


@pytest.fixture
def raising() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_exception_at_any_moment_leaves_nothing_behind(
    make: MakeContext, nothing_left: Callable[[str], None], raising: None
) -> None:
    began = time.monotonic()
    with LeaseLock(make()):
        pass
    took = time.monotonic() - began
    for number in range(INTERRUPTS):
        try:
            signal.setitimer(signal.ITIMER_REAL, took * 1.2 * (number + 1) / INTERRUPTS)
            with LeaseLock(make()):
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            pass
        nothing_left(f"interrupt {number}")


def test_a_lock_that_nobody_has_any_more_is_freed_and_said(
    make: MakeContext, nothing_left: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    session = LeaseLock(make()).__enter__()
    gc.collect()
    assert not caplog.records
    session.check()
    del session
    nothing_left("forgotten")
    assert ["was never left" in record.message for record in caplog.records] == [True]


GENERATOR = """
import sys
from dislock import LeaseLock, LockContext

def hold():
    with LeaseLock(LockContext(url=sys.argv[1], table_parts=["key_value"], lock_key="job", owner="host:1",
                               run_ttl_seconds=60, lease_interval_seconds=20)):
        yield

kept = hold()
next(kept)
if sys.argv[2] == "exit":
    sys.exit(5)
"""


@pytest.mark.parametrize("how", ["end", "exit"])
def test_a_generator_that_holds_a_lock_when_the_interpreter_ends(
    database_url: str, how: str, db: psycopg.Connection[Any]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATOR, database_url, how], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == (5 if how == "exit" else 0)
    lines = done.stderr.splitlines()
    # Freed in order where the interpreter still does that, else said in one line: its row expires.
    assert len(lines) <= 1, done.stderr
    held = db.execute("SELECT 1 FROM key_value WHERE expire_at > clock_timestamp()").fetchone()
    assert bool(held) == bool(lines)
    assert all("the interpreter is shutting down" in line for line in lines)
