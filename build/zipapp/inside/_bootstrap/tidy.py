"""Background work, for which no start waits: writes the cache to disk, and removes old and temporary ones."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from _bootstrap import start

ABANDONED = 3600  # s after which an incomplete folder that no process holds is removed
KEEP = b"k"
TRIES = 20
UNUSED = 30 * start.DAY


def in_background(root: str, folder: str) -> None:
    """Tidies up in a separate process. Nobody waits for it, and it keeps no terminal or pipe open.

    If it cannot be made, or is killed, a later start makes another one (`start.LOST`).
    """
    with suppress(OSError):
        os.close(apart(lambda parent: tidy(root, folder)))


def remove_at_end(folder: str) -> int:
    """Removes `folder` when the returned descriptor is closed: on exit, exec or a kill. OSError: nobody will."""

    def wait(parent: int) -> None:
        while told := os.read(parent, 1):
            if told == KEEP:
                return
        remove(folder)

    return apart(wait, to_the_end=True)


def keep(end: int) -> None:
    """Cancels the removal, because another account could have put a file of this account at that place."""
    with suppress(OSError):
        os.write(end, KEEP)
    os.close(end)


def remove(folder: str) -> None:
    """Removes a folder as far as possible. A process that compiles may be writing its last file there."""
    import shutil

    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


def apart(task: Callable[[int], None], *, to_the_end: bool = False) -> int:
    """Runs the task in a grandchild, because this process may become the command, which must have no extra child.

    The task gets one end of a pipe, which it can read to the end when this process is gone; the other end is returned.
    Only a task that is needed `to_the_end` survives a request to end: systemd waits for each process of a unit.
    OSError: no process could be made, or it has ended already.
    """
    parent, end = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(parent)
        os.close(end)
        raise
    if not child:
        try:
            os.setsid()
            if not os.fork():
                for request in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    if to_the_end:
                        signal.signal(request, signal.SIG_IGN)
                    elif callable(signal.getsignal(request)):
                        # A script that imports something may have its own handler.
                        signal.signal(request, signal.SIG_DFL)
                os.chdir("/")
                close_all_but(parent)
                task(parent)
        finally:
            os._exit(0)
    os.close(parent)
    # If SIGCHLD is ignored there is no exit code, so the pipe shows whether the grandchild exists.
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    try:
        os.write(end, b"\n")
    except BrokenPipeError:
        os.close(end)
        raise OSError("no process can be made") from None
    return end


def close_all_but(kept: int) -> None:
    try:
        numbers = [int(number) for number in os.listdir("/proc/self/fd")]
    except OSError:
        # All possible descriptors in one call, because there may be a million.
        os.closerange(0, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number != kept:
            with suppress(OSError):
                os.close(number)


def tidy(root: str, folder: str) -> None:
    with suppress(OSError):
        os.nice(19)
    alone = os.open(f"{folder}/start", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:
        pass  # a file system without locks: two such processes do no harm
    # Again if something was added meanwhile.
    seen = 0
    while seen != (seen := os.stat(f"{folder}/.lock").st_mtime_ns):
        os.sync()
    # An empty lock says that the cache survives a crash of the machine.
    os.truncate(f"{folder}/.lock", 0)
    for name in os.listdir(root):
        with suppress(OSError):
            if name.startswith((".new-", ".old-")):
                remove_unused(f"{root}/{name}", ABANDONED)
            elif is_cache(name) and name != os.path.basename(folder):
                remove_unused(f"{root}/{name}", UNUSED)


def is_cache(name: str) -> bool:
    """Whether it is a cache of some build of this program: the folder may contain other things."""
    build, dash, _ = name.partition("-")
    return bool(dash) and len(build) == len(start.BUILD) and not build.strip("0123456789abcdef")


def remove_unused(place: str, after: float) -> None:
    """Removes a cache that was not used for `after` seconds, unless a process runs from it."""
    try:
        lock = os.open(f"{place}/.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)  # partly removed, or just being made
    if time.time() - os.fstat(lock).st_mtime > after:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = f"{os.path.dirname(place)}/.old-{os.urandom(8).hex()}"
        os.rename(place, gone)
        remove(gone)
    os.close(lock)
