"""What the command line writes: straight to the descriptors, so that a broken one changes nothing else."""

from __future__ import annotations

import os
import select

_PREFIX = "dislock: "


def write(descriptor: int, text: str) -> None:
    """Writes text to standard output or standard error. A full disk or a closed pipe is not an error here.

    It uses none of Python's streams: their buffers would be written at exit, where a failure changes the exit code to
    120.
    """
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return


def ready(descriptor: int, seconds: float) -> bool:
    """Whether a line can be written without a wait, within so many seconds.

    A pipe that is ready takes PIPE_BUF bytes, 4096 on Linux (POSIX, ``poll`` and ``write``). It is not ready while
    nobody reads what fills it: a pager that waits, a terminal that was stopped.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


def complain(message: str, time: str = "") -> None:
    """Writes one line to standard error; ``time`` stands in front of it."""
    write(2, time + _PREFIX + one_line(message) + "\n")


def one_line(text: str) -> str:
    """The text in one line, without characters that could move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in " ".join(text.split()))


def occupy_closed_descriptors() -> None:
    """Opens /dev/null in place of each of the first three descriptors that is closed.

    Otherwise the connection to the database would get that number, and messages would be written into it. The
    replacement is not inherited: for the command the descriptor is closed, as it was.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one, because those below it are in use.
            os.open(os.devnull, os.O_RDWR)
