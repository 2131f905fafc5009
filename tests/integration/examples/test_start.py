"""The commands of "Start here" do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.wait import until

pytestmark = pytest.mark.integration
START = Path(__file__).parents[3] / "docs" / "start.md"


def commands(heading: str) -> list[str]:
    """The lines of the shell block below a heading of the page."""
    section = START.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    [block] = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return block.splitlines()


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "dislock.pyz"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dislock "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DATABASE_URL": database_url}


def run(command: str, environment: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_a_lease_keeps_the_second_terminal_out(environment: dict[str, str]) -> None:
    [command] = commands("2. Run something under a lease")
    first = subprocess.Popen(["sh", "-c", f"exec {command}"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "working\n"
        assert run(command, environment) == (0, "", "")
        informed = run(command.replace("DATABASE_URL", "--log-level=INFO DATABASE_URL"), environment)
        assert informed[:2] == (0, "")
        assert "is held by" in informed[2]
    finally:
        first.terminate()
        first.communicate()
    code, out, err = run(command.replace("sleep 20", "true"), environment)
    assert (code, out, err) == (0, "working\n", "")


def test_a_tick_is_started_once(environment: dict[str, str]) -> None:
    # Both starts belong to one hour.
    until(lambda: 10 < time.time() % 3600 < 3540, seconds=90)
    first, second = commands("3. Start a tick once")
    # Later than half the gap after its tick a start is worth a warning, which is not what this is about.
    assert run(first, environment)[:2] == (0, "started\n")
    assert run(second, environment)[:2] == (0, "")
    [check] = commands("6. See what is wrong before the night")
    assert run(check, environment)[0] == 0
    code, out, err = run("dislock.pyz --status DATABASE_URL", environment)
    assert (code, err) == (0, "")
    assert "hourly" in out
