"""In a process that gevent or eventlet has patched: refused in one line, and nothing is left changed or hanging."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

# Looked for and not imported: both change the process that imports them, and other tests fork it.
pytestmark = pytest.mark.skipif(
    find_spec("gevent") is None or find_spec("eventlet") is None,
    reason="gevent and eventlet are not both installed for this Python",
)

#: Takes a lock in each way there is; nothing listens at the address, which nobody is to find out.
TRIES = """
import asyncio, signal
from dislock import ConfigurationError, LeaseLock, LockContext, ScheduleLock, acquire_locks, aio
from dislock import run_with_locks, with_locks
context = LockContext(
    url="postgresql://127.0.0.1:1/nowhere", table_parts=["key_value"], lock_key="job", owner="host:1",
    schedule="* * * * *", run_ttl_seconds=60, lease_interval_seconds=10,
)
def block(lock):
    with lock:
        pass
async def coroutine():
    async with aio.LeaseLock(context):
        pass
tries = [
    lambda: block(ScheduleLock(context)),
    lambda: block(LeaseLock(context)),
    lambda: block(acquire_locks(context, ["schedule", "lease"])),
    with_locks(context, ["lease"])(print),
    lambda: run_with_locks(["true"], context, ["lease"]),
    lambda: coroutine().send(None),
]
for each in tries:
    try:
        each()
    except ConfigurationError as error:
        print(error)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def run(patch: str) -> list[str]:
    argv = [sys.executable, "-W", "ignore", "-c", patch + TRIES]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("patch", "replaced"),
    [
        ("from gevent import monkey; monkey.patch_all()", "gevent has replaced threading, queue, select, subprocess"),
        ("from gevent import monkey; monkey.patch_all(thread=False)", "gevent has replaced queue, select, subprocess"),
        ("from gevent import monkey; monkey.patch_queue()", "gevent has replaced queue"),
        ("import eventlet; eventlet.monkey_patch()", "eventlet has replaced thread, select"),
    ],
)
def test_a_patched_process_is_refused_in_one_line(patch: str, replaced: str) -> None:
    *refusals, mask = run(patch)
    assert len(refusals) == 6
    assert len(set(refusals)) == 1
    assert refusals[0].startswith(f"dislock cannot work in this process: {replaced}")
    assert mask == "set()"


@pytest.mark.parametrize(
    "patch", ["import gevent.monkey", "import eventlet", "import gevent.monkey; gevent.monkey.patch_socket()"]
)
def test_what_leaves_threads_alone_is_not_refused(patch: str) -> None:
    code = f"{patch}\nfrom dislock.greenlets import refuse_greenlets\nrefuse_greenlets()"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
