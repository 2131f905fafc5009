"""The whole command line contract, on the program that the archive for hosts holds."""

from __future__ import annotations

from pathlib import Path

import pytest

# ruff: noqa: F403 - the contract's tests and their fixtures are collected from here once more, for another command
from tests.integration.cli.test_ends import *
from tests.integration.cli.test_runs import *
from tests.integration.cli.test_usage import *
from tests.integration.cli.test_waiting import *
from tests.support.contract import bare, dislock, lease, on_this_host, shares_host

__all__ = ["bare", "dislock", "lease", "on_this_host", "shares_host"]
pytestmark = pytest.mark.integration


@pytest.fixture
def dislock_command(folder: Path) -> list[str]:
    return [str(folder / "dislock")]
