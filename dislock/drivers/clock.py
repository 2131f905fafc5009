"""The clock by which every deadline is kept."""

from __future__ import annotations

import time


def clock() -> float:
    """Seconds on a clock that nobody sets and that runs on while the machine sleeps, where there is one.

    That is CLOCK_BOOTTIME on Linux (clock_gettime(2)).
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
