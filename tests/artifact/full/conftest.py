"""All of the contract, on the oldest and the newest CPython."""

from __future__ import annotations

import pytest

from tests.artifact.contract import bare, dislock_command, found, on_each
from tests.integration.cli.test_runs import each
from tests.support.contract import dislock, lease, on_this_host, shares_host

__all__ = ["bare", "dislock", "dislock_command", "each", "lease", "on_this_host", "shares_host"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_each(metafunc, found(full=True))
