"""How many examples the property tests try: few and always the same, or many and new ones on demand."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def examples(number: int) -> settings:
    """Settings for ``number`` examples; DISLOCK_EXAMPLES multiplies them and lets them be random."""
    factor = int(os.environ.get("DISLOCK_EXAMPLES", "1"))
    return settings(
        max_examples=number * factor,
        derandomize=factor == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
