"""Exceptions from signal handlers at any moment, and the end of the interpreter: nothing is held for nobody."""

from __future__ import annotations

import gc
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


class Interrupted(BaseException):
    """What a signal handler raises."""


class Walk:
    """Raises before one line, or one instruction, of this package in the thread that uses a lock; the next at a time.

    ``every`` counts the places that were passed; the ``at``-th of them raises.
    """

    def __init__(self, at: int, *, opcodes: bool) -> None:
        self.at, self.every, self.opcodes = at, 0, opcodes

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = self.opcodes
        if event == ("opcode" if self.opcodes else "line"):
            self.every += 1
            if self.every == self.at:
                sys.settrace(None)
                raise Interrupted
        return self


@pytest.fixture
def nothing_left(live: Callable[[], set[str]], connections: Callable[[], int]) -> Callable[[str], None]:
    def check(where: str) -> None:
        gc.collect()
        until(lambda: not live(), what=f"nothing is held, {where}")
        until(lambda: connections() == 0, what=f"all connections are closed, {where}")
        until(
            lambda: not [t for t in threading.enumerate() if t.name.startswith("dislock")], what=f"no thread, {where}"
        )

    return check


def use(make: MakeContext, walk: Walk) -> bool:
    """Whether a lock was used without being interrupted."""
    context = make()
    before = sys.gettrace()
    try:
        sys.settrace(walk)
        with LeaseLock(context):
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
    for at in range(1, 10_000):
        if use(make, Walk(at, opcodes=False)):
            break
        nothing_left(f"interrupted at line {at}")
    assert 50 < at < 9_999


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
    assert ["neither left nor kept" in record.message for record in caplog.records] == [True]


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


def interpreters() -> list[str]:
    found = [sys.executable]
    for version in ("3.10", "3.11", "3.12"):
        folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        found += [str(path) for path in folders[-1:]]
    return found


@pytest.mark.parametrize("how", ["end", "exit"])
def test_a_generator_that_holds_a_lock_when_the_interpreter_ends(
    database_url: str, how: str, db: psycopg.Connection[Any]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATOR, database_url, how], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == (5 if how == "exit" else 0)
    lines = done.stderr.splitlines()
    # Freed in order where the interpreter still does that, else said in one line: its row ends by itself.
    assert len(lines) <= 1, done.stderr
    held = db.execute("SELECT 1 FROM key_value WHERE expire_at > clock_timestamp()").fetchone()
    assert bool(held) == bool(lines)
    assert all("the interpreter ends" in line for line in lines)
