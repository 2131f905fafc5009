"""How this process itself ends: at once, with its output written, or by the signal that ended its command."""

from __future__ import annotations

import os
import signal
import sys

# As in the command line: loading typing takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def flush_output() -> None:
    """Write out what this interpreter still holds: an exec, or an end without a shutdown, would lose it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # closed, or its reader is gone: nothing that would change what comes next


def leave(code: int) -> NoReturn:
    """End this process without the interpreter's shutdown, which takes long and frees what the kernel frees anyway."""
    flush_output()
    os._exit(code)


def die_of_interrupt() -> NoReturn:
    """End this process by SIGINT, as the command did.

    A shell stops its loop or script at Ctrl-C only when the command that it waits for died by SIGINT; an exit code of
    130 means to it that the signal was handled.
    """
    flush_output()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Reached only where the signal cannot kill: as PID 1 of a namespace.
    os._exit(128 + signal.SIGINT)
