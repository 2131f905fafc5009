"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 20.0, what: str = "the condition") -> T:
    """The first true result of ``condition``; fails after ``seconds``."""
    limit = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < limit, f"{what} did not come true within {seconds:g} s"
        time.sleep(0.01)
    return result
