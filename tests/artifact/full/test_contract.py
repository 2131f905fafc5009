"""The suite is written once, where it runs on the installed command."""

from __future__ import annotations

from tests.integration.cli.test_ends import *  # noqa: F403 - every test of it, also those to come
from tests.integration.cli.test_runs import *  # noqa: F403 - the same
from tests.integration.cli.test_usage import *  # noqa: F403 - the same
from tests.integration.cli.test_waiting import *  # noqa: F403 - the same
