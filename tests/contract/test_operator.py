"""The operator's commands and the journal, each once: what they say is tested in tests/integration/operator."""

from __future__ import annotations

import json

import pytest

from tests.support.contract import Dislock

pytestmark = pytest.mark.integration


@pytest.fixture
def operator(dislock: Dislock) -> Dislock:
    """The command under test with a journal; one run was a success, and one failed."""
    dislock.environment |= {"LOCK_JOURNAL": "runs", "LOCK_STRATEGY": "schedule,lease"}
    ran = dislock.run("--init", "DATABASE_URL")
    assert (ran.code, ran.err) == (0, "")
    assert dislock.run("DATABASE_URL", "echo", "ran").out == "ran\n"
    assert dislock.run("--lock-key=other", "DATABASE_URL", "sh", "-c", "exit 7").code == 7
    return dislock


@pytest.mark.short
def test_the_record_of_runs(operator: Dislock) -> None:
    runs = operator.run("--runs", "--json", "DATABASE_URL")
    assert (runs.code, runs.err) == (0, "")
    assert [(run["key"], run["state"], run["exit_code"]) for run in json.loads(runs.out)] == [
        ("other", "failure", 7),
        ("job", "success", 0),
    ]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--check"], 0, "it is taken until"),
        (["--status"], 0, "other"),
        (["--overdue"], 2, "CRITICAL"),
        (["--metrics", "--expect=never"], 0, 'dislock_overdue{key="never"} 2'),
        (["--timeline"], 0, "</html>"),
        (["--schema"], 0, "CREATE TABLE"),
        (["--release=job", "--slot", "--force"], 0, "job"),
        (["--forget=other", "--force"], 0, "deleted"),
    ],
)
def test_each_command(operator: Dislock, argv: list[str], code: int, said: str) -> None:
    words = argv if argv == ["--schema"] else [*argv, "DATABASE_URL"]
    ran = operator.run(*words)
    assert (ran.code, ran.err) == (code, "")
    assert said in ran.out
