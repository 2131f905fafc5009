"""What `ci/test` is made of. Only the standard library: it runs before anything is installed."""

from __future__ import annotations

import os


def in_ci() -> bool:
    """Whether a thing that this machine lacks is a failure and not a skip."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")
