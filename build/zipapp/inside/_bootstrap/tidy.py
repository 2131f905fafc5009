"""What happens beside a run, and no start waits for: the cache reaches the disk, old ones and temporary ones go."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from _bootstrap import start

ABANDONED = 3600  # s after which a half-made folder that nobody holds is nobody's
KEEP = b"k"
TRIES = 20
UNUSED = 30 * start.DAY


def in_background(root: str, folder: str) -> None:
    """Tidy up from a process of its own, which nobody waits for and no terminal or pipe hangs on.

    Where there can be none, or where it is killed, a later start makes another (`start.LOST`).
    """
    with suppress(OSError):
        os.close(apart(lambda parent: tidy(root, folder)))


def remove_at_end(folder: str) -> int:
    """Remove `folder` when the descriptor returned is closed: on exit, on exec, on a kill. OSError: nobody will."""

    def wait(parent: int) -> None:
        while told := os.read(parent, 1):
            if told == KEEP:
                return
        remove(folder)

    return apart(wait, to_the_end=True)


def keep(end: int) -> None:
    """Remove nothing after all: another account could have put something of this one's in that place."""
    with suppress(OSError):
        os.write(end, KEEP)
    os.close(end)


def remove(folder: str) -> None:
    """All of a folder, as far as that can be done. A process that compiles may be writing its last file there."""
    import shutil

    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


def apart(task: Callable[[int], None], *, to_the_end: bool = False) -> int:
    """Run the task in a grandchild: the command that this process may become has no child that it did not start.

    The task is given the end of a pipe that reads as ended when this process has gone; what is returned is the other.
    Only a task that is needed `to_the_end` outlives a request to leave: systemd waits for each process of a unit.
    OSError: there can be no process, or it has ended already.
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
                        # The handler of a script that imports something.
                        signal.signal(request, signal.SIG_DFL)
                os.chdir("/")
                close_all_but(parent)
                task(parent)
        finally:
            os._exit(0)
    os.close(parent)
    # Its exit code tells nothing where SIGCHLD is ignored, so whether it had a child is seen in another way.
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
        # All that could be open, and not one by one: there may be a million.
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
        pass  # a file system without locks: two of them do no harm
    # Again where something was added meanwhile.
    seen = 0
    while seen != (seen := os.stat(f"{folder}/.lock").st_mtime_ns):
        os.sync()
    # Empty from here on: the cache outlives a crash of the machine.
    os.truncate(f"{folder}/.lock", 0)
    for name in os.listdir(root):
        with suppress(OSError):
            if name.startswith((".new-", ".old-")):
                remove_unused(f"{root}/{name}", ABANDONED)
            elif is_cache(name) and name != os.path.basename(folder):
                remove_unused(f"{root}/{name}", UNUSED)


def is_cache(name: str) -> bool:
    """Whether a build of this program made it: other things may lie beside ours."""
    build, dash, _ = name.partition("-")
    return bool(dash) and len(build) == len(start.BUILD) and not build.strip("0123456789abcdef")


def remove_unused(place: str, after: float) -> None:
    """Remove a cache that has not been used for `after` seconds, unless a process runs from it."""
    try:
        lock = os.open(f"{place}/.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        lock = os.open(place, os.O_RDONLY | os.O_CLOEXEC)  # half removed, or not begun
    if time.time() - os.fstat(lock).st_mtime > after:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = f"{os.path.dirname(place)}/.old-{os.urandom(8).hex()}"
        os.rename(place, gone)
        remove(gone)
    os.close(lock)
