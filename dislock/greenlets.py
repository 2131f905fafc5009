"""Refuses a process in which gevent or eventlet has replaced threads: locks need those of the operating system."""

from __future__ import annotations

import sys
from typing import Any

from dislock.errors import ConfigurationError

# Library, the module that replaces, its function that says so, and the names of what our threads need.
_LIBRARIES = (
    ("gevent", "gevent.monkey", "is_module_patched", ("threading", "queue", "select", "subprocess")),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", ("thread", "select")),
)


def refuse_greenlets() -> None:
    """Raises ``ConfigurationError`` where threads, or what they wait with, are greenlets.

    A lease has to be renewed, and a deadline has to be kept, whatever the rest of the program does. A greenlet waits
    for the others; and a system call that is meant for one thread, such as the one that blocks signals, is then carried
    out in the thread of the whole program.
    """
    for library, module, function, needed in _LIBRARIES:
        patcher: Any = sys.modules.get(module)
        if patcher and (patched := [name for name in needed if getattr(patcher, function)(name)]):
            raise ConfigurationError(
                f"dislock cannot work in this process: {library} has replaced {', '.join(patched)} (monkey patching); "
                "take the lock in a process without it, for example with the command dislock"
            )
