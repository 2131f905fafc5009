"""A fixture for pytest: name this module in ``pytest_plugins`` of a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dislock.testing import LockServer, in_memory


@pytest.fixture
def lock_server() -> Iterator[LockServer]:
    """Makes every lock of the test work in memory; see ``dislock.testing.in_memory``."""
    with in_memory() as server:
        yield server
