"""How this process ends: at once, with its output written, or by the signal that killed its command."""

from __future__ import annotations

import os
import signal
import sys

# As in the command line: loading typing takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def flush_output() -> None:
    """Writes out what this interpreter still buffers: an exec, or an end without a shutdown, would lose it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # closed, or nobody reads it


def leave(code: int) -> NoReturn:
    """Ends this process without the interpreter's shutdown, which is slow and frees what the kernel frees anyway."""
    flush_output()
    os._exit(code)


def die_of_interrupt() -> NoReturn:
    """Ends this process by SIGINT, as the command ended.

    On Ctrl-C a shell stops its loop or script only if the command that it waits for died by SIGINT. To a shell, an exit
    code of 130 means that the command handled the signal.
    """
    flush_output()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Reached only as PID 1 of a namespace, which the signal cannot kill.
    os._exit(128 + signal.SIGINT)
