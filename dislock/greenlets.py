"""Refuses a process in which gevent or eventlet has replaced threads: locks need those of the operating system."""

from __future__ import annotations

import sys
from typing import Any

from dislock.errors import ConfigurationError

# Library, the module that patches, the function that reports it, and the names that our threads need.
_LIBRARIES = (
    ("gevent", "gevent.monkey", "is_module_patched", ("threading", "queue", "select", "subprocess")),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", ("thread", "select")),
)


def refuse_greenlets() -> None:
    """Raises ``ConfigurationError`` if greenlets have replaced threads, or what threads wait with.

    A lease must be renewed and a deadline kept whatever the rest of the program does, but a greenlet waits for the
    others. And a system call that is meant for one thread, such as the one that blocks signals, would then act on the
    thread of the whole program.
    """
    for library, module, function, needed in _LIBRARIES:
        patcher: Any = sys.modules.get(module)
        if patcher and (patched := [name for name in needed if getattr(patcher, function)(name)]):
            raise ConfigurationError(
                f"dislock cannot work in this process: {library} has replaced {', '.join(patched)} (monkey patching); "
                "take the lock in a process without it, for example with the command dislock"
            )
