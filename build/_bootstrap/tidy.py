"""What happens beside a run, and no start waits for: the cache reaches the disk, old ones and temporary ones go."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from _bootstrap import start

ABANDONED = 3600  # s after which a half-made folder that nobody holds is nobody's
TRIES = 20
UNUSED = 30 * start.DAY


def in_background(root: str, folder: str) -> None:
    """Tidy up from a process of its own, which nobody waits for and no terminal or pipe hangs on."""
    end = apart(lambda parent: tidy(root, folder))
    os.close(end)


def remove_at_end(folder: str) -> int:
    """Remove `folder` when the descriptor returned is closed: on exit, on exec, on a kill."""

    def wait(parent: int) -> None:
        os.read(parent, 1)
        remove(folder)

    return apart(wait)


def remove(folder: str) -> None:
    """All of a folder, as far as that can be done. A process that compiles may be writing its last file there."""
    import shutil

    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


def apart(task: Callable[[int], None]) -> int:
    """Run the task in a grandchild: the command that this process may become has no child that it did not start.

    The task is given the end of a pipe that reads as ended when this process has gone; what is returned is the other.
    """
    parent, end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            if not os.fork():
                for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(ignored, signal.SIG_IGN)
                os.chdir("/")
                for number in open_descriptors():
                    if number != parent:
                        with suppress(OSError):
                            os.close(number)
                task(parent)
        finally:
            os._exit(0)
    os.close(parent)
    os.waitpid(child, 0)
    return end


def open_descriptors() -> Iterable[int]:
    """All that are open now; without /proc, all that could be: there may be a million."""
    try:
        return [int(number) for number in os.listdir("/proc/self/fd")]
    except OSError:
        return range(os.sysconf("SC_OPEN_MAX"))


def tidy(root: str, folder: str) -> None:
    with suppress(OSError):
        os.nice(19)
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
