"""Every example is run as it stands, with a database and commands of the test's own."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.wait import until

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which dislock and the examples' commands are found; each command notes that it was run."""
    note = f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/ran\n'
    programs = {"dislock.pyz": f'#!/bin/sh\nexec {sys.executable} -m dislock "$@"\n', "report": note, "import": note}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def ran(path: str) -> list[str]:
    log = Path(path.split(":", maxsplit=1)[0]) / "ran"
    return [Path(line).name for line in log.read_text().splitlines()] if log.exists() else []


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def within_a_tick() -> None:
    """Waits until all hosts of a test surely start within one tick of five minutes, tolerance included."""
    until(lambda: time.time() % 300 < 270, seconds=60)


@pytest.mark.usefixtures("within_a_tick")
def test_each_line_of_the_crontab_starts_its_job_once(database_url: str, path: str) -> None:
    lines = [line for line in (EXAMPLES / "crontab").read_text().splitlines() if line and not line.startswith("#")]
    environment = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    jobs = [re.match(r"(?:\S+\s+){5}(.*)", line).group(1) for line in lines if not re.match(r"\w+=", line)]  # type: ignore[union-attr] # a line that does not match fails the test
    assert len(jobs) == 2
    environment |= {"DATABASE_URL": database_url, "PATH": path}
    for job in jobs:
        # Nobody waits half a minute in a test for what is spread over hosts.
        hurried = job.replace("--jitter=30", "--jitter=0.1")
        for _host in range(3):
            assert run([environment["SHELL"], "-c", hurried], environment) == ""
    assert ran(path) == ["report --all", "import --batch"]


def test_the_schedules_in_the_crontab_are_those_of_their_lines() -> None:
    for line in (EXAMPLES / "crontab").read_text().splitlines():
        if "--schedule=" in line and not line.startswith("#"):
            quoted = re.search(r"--schedule='([^']*)'", line)
            assert quoted is not None
            assert line.split()[:5] == quoted.group(1).split()


@pytest.mark.usefixtures("within_a_tick")
def test_the_systemd_service_runs_its_job_once(database_url: str, path: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign] # the documented way of keeping the case of names
    text = (EXAMPLES / "dislock-import.service").read_text()
    unit.read_string(text)
    settings = [shlex.split(value)[0] for value in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)]
    environment = dict(setting.split("=", 1) for setting in settings)
    assert environment["LOCK_STRATEGY"] == "schedule,lease"
    start = unit["Service"]["ExecStart"].replace("/usr/local/bin/", path.split(":", maxsplit=1)[0] + "/")
    for _host in range(3):
        assert run(shlex.split(start), {**environment, "DATABASE_URL": database_url, "PATH": path}) == ""
    assert ran(path) == ["import --batch"]


def test_the_systemd_service_leaves_roots_cache_alone() -> None:
    # With DynamicUser, systemd gives the folder that is named here to the service's user; root's is moved away.
    lines = [line.partition("=") for line in (EXAMPLES / "dislock-import.service").read_text().splitlines()]
    [folder] = [value for name, _, value in lines if name == "CacheDirectory"]
    assert folder != "dislock"
    assert ("Environment", "=", f"DISLOCK_CACHE=/var/cache/{folder}") in lines


def test_systemd_signals_dislock_alone() -> None:
    # It passes a SIGTERM on; one that systemd sent to the command as well would reach that twice.
    assert "KillMode=mixed" in (EXAMPLES / "dislock-import.service").read_text().splitlines()


@pytest.mark.parametrize("unit", ["dislock-import.service", "dislock-import.timer"])
def test_systemd_units_have_no_unknown_word(unit: str) -> None:
    known = {
        "Unit": {"Description", "Wants", "After"},
        "Service": {
            *("Type", "EnvironmentFile", "Environment", "ExecStart", "KillMode", "TimeoutStopSec"),
            *("DynamicUser", "CacheDirectory", "NoNewPrivileges", "ProtectSystem"),
        },
        "Timer": {"OnCalendar", "AccuracySec"},
        "Install": {"WantedBy"},
    }
    section = ""
    for line in (EXAMPLES / unit).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            assert line.split("=")[0] in known[section], line


def python(name: str, database_url: str, *arguments: str) -> str:
    environment = {**os.environ, "DATABASE_URL": database_url}
    return run([sys.executable, str(EXAMPLES / name), *arguments], environment)


def held(database_url: str, key: str) -> Any:
    connection = psycopg.connect(database_url, autocommit=True)
    connection.execute("INSERT INTO key_value VALUES (%s, 'other:9', now() + interval '1 hour')", [key])
    return connection


def test_guarding_a_block(database_url: str) -> None:
    assert python("guard_a_block.py", database_url).count("written with token") == 3
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE key_value SET value = 'other:9', expire_at = now() + interval '1 hour'")
    assert "other:9 holds the lease" in python("guard_a_block.py", database_url)


def test_guarding_a_coroutine(database_url: str) -> None:
    assert python("guard_a_coroutine.py", database_url) == "imported\n"
    assert "nothing to do" in python("guard_a_coroutine.py", database_url)


def test_a_task_delivered_twice(database_url: str) -> None:
    with held(database_url, "cronjob-lock:lease:bill:acme"):
        assert python("worker_task.py", database_url, "acme") == "skipped\n"
        # Nor is a later delivery skipped: a lease prevents an overlap, not a repetition.
        assert [python("worker_task.py", database_url, "other") for _ in range(2)] == ["billed other\n"] * 2
