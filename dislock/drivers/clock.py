"""The clock by which every deadline is kept."""

from __future__ import annotations

import time

#: Seconds that a wait may sleep before it looks at the clock again: the timer of a sleep stops while the machine is
#: suspended.
LONGEST_SLEEP = 1.0


def clock() -> float:
    """Seconds on a clock that nobody can set, and that, on Linux, also runs while the machine is suspended.

    That is CLOCK_BOOTTIME (clock_gettime(2)); elsewhere it is the monotonic clock.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
