"""Waiting for a condition, not for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str = "", seconds: float = 10.0) -> None:
    """Returns as soon as the condition holds; ``TimeoutError`` with ``what`` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(0.01)
