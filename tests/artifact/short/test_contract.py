"""Each kind of outcome once."""

from __future__ import annotations

import pytest

from tests.integration.cli import test_ends as ends
from tests.integration.cli import test_runs as runs
from tests.integration.cli import test_usage as usage
from tests.integration.cli import test_waiting as waiting
from tests.support.contract import Dislock

pytestmark = pytest.mark.integration

test_version = usage.test_version


class TestSchedule:
    test_one_start_per_slot_and_silence = runs.TestSchedule.test_one_start_per_slot_and_silence
    test_the_slot_is_the_zones = runs.TestSchedule.test_the_slot_is_the_zones
    test_the_command_takes_the_place_of_the_process = runs.TestSchedule.test_the_command_takes_the_place_of_the_process


class TestLease:
    test_one_run_at_a_time = runs.TestLease.test_one_run_at_a_time
    test_the_command_is_ended_and_75 = ends.TestLoss.test_the_command_is_ended_and_75
    test_they_reach_the_command_and_the_lease_is_freed = (
        ends.TestSignals.test_they_reach_the_command_and_the_lease_is_freed
    )


class TestWaiting:
    test_it_runs_as_soon_as_the_lease_is_free = waiting.TestWaiting.test_it_runs_as_soon_as_the_lease_is_free


class TestCommand:
    test_its_exit_code = runs.TestCommand.test_its_exit_code
    test_its_environment_is_as_it_came = runs.TestCommand.test_its_environment_is_as_it_came
    test_one_that_cannot_be_started = runs.TestCommand.test_one_that_cannot_be_started_gives_everything_back


def test_the_binary_implementation(bare: Dislock) -> None:
    ran = bare.run("--python", "-c", "import psycopg; print(psycopg.pq.__impl__)")
    assert (ran.code, ran.out, ran.err) == (0, "binary\n", "")
