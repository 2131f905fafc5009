"""The part of the contract that depends on interpreter and platform, on the others, some of them emulated."""

from __future__ import annotations

import pytest

from tests.artifact.contract import bare, dislock_command, found, on_each
from tests.support.contract import Dislock, dislock, lease, on_this_host, shares_host

__all__ = ["bare", "dislock", "dislock_command", "lease", "on_this_host", "shares_host"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_each(metafunc, found(full=False))


@pytest.fixture
def each(dislock: Dislock) -> Dislock:
    """Both locks at once: an emulated start takes seconds, and the other tests here are of one lock each."""
    dislock.environment["LOCK_STRATEGY"] = "schedule,lease"
    return dislock
