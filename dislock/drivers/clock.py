"""The clock by which every deadline is kept."""

from __future__ import annotations

import time

#: Seconds that a wait may sleep before it looks at the clock again: what it sleeps on stands still in a suspended
#: machine.
LONGEST_SLEEP = 1.0


def clock() -> float:
    """Seconds on a clock that nobody sets and that runs on while the machine sleeps, where there is one.

    That is CLOCK_BOOTTIME on Linux (clock_gettime(2)).
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
