"""A child's wall clock can be set wrong, and its monotonic clocks are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.support.clock import shifted

pytestmark = pytest.mark.integration

CLOCKS = (
    "import json, time; print(json.dumps([time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]))"
)


@pytest.mark.parametrize("seconds", [3600.5, -3600.5])
def test_only_the_wall_clock_is_shifted(seconds: float) -> None:
    def clocks() -> list[float]:
        return [time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]

    before = clocks()
    done = subprocess.run(
        [sys.executable, "-c", CLOCKS], env={**os.environ, **shifted(seconds)}, stdout=subprocess.PIPE, check=True
    )
    wall, monotonic, boottime = json.loads(done.stdout)
    after = clocks()
    assert before[0] + seconds - 0.01 <= wall <= after[0] + seconds + 0.01
    assert before[1] <= monotonic <= after[1]
    assert before[2] <= boottime <= after[2]
