"""The examples for monitoring, each run or checked by the program that it is for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dislock.cli.actions import find_action
from dislock.journal.metrics import METRICS

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[3] / "examples" / "monitoring"


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    """A PATH on which dislock and the examples' commands are found; report and curl note that they were run."""
    note = f'#!/bin/sh\necho "${{0##*/}} $*" >>{tmp_path}/ran\n[ ! -e {tmp_path}/fail ]\n'
    programs = {"dislock.pyz": f'#!/bin/sh\nexec {sys.executable} -m dislock "$@"\n', "report": note, "curl": note}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    found = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOCK_JOURNAL": "dislock_runs"}
    found |= {"DATABASE_URL": database_url, "MONITOR_URL": database_url}
    made = subprocess.run(["dislock.pyz", "--init", "DATABASE_URL"], env=found, capture_output=True, check=False)
    assert (made.returncode, made.stderr) == (0, b"")
    return found


def shell(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def crontab(name: str) -> str:
    """The command of the line that names it."""
    lines = [line for line in (EXAMPLES / "crontab").read_text().splitlines() if not line.startswith("#")]
    (line,) = [line for line in lines if name in line and re.match(r"[\d*]", line)]
    return line.split(None, 5)[5]


def failed_run(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO dislock_runs (key, strategy, owner, started_at, ended_at, exit_code, outcome)
               VALUES ('report', 'lease', 'h:1', now(), now(), 1, 'failure')"""
        )


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def test_the_alert_rules_are_valid_and_fire_as_they_should(promtool: str) -> None:
    for words in (["check", "rules", "dislock.rules.yml"], ["test", "rules", "dislock.rules.test.yml"]):
        done = subprocess.run([promtool, *words], cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_alert_rules_use_metrics_that_exist() -> None:
    used = set(re.findall(r"dislock_[a-z_]+", (EXAMPLES / "dislock.rules.yml").read_text()))
    assert used <= {metric.name for metric in METRICS}
    assert "dislock_overdue" in used


def test_the_metrics_file_is_replaced_by_a_whole_one_only(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"TEXTFILES": str(tmp_path)}
    failed_run(environment["DATABASE_URL"])
    line = crontab("--metrics")
    done = shell(line, environment)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "dislock.prom").read_text()
    assert 'dislock_overdue{key="report"} 2\n' in text
    assert 'dislock_overdue{key="import"} 2\n' in text, "it is expected and never ran"
    assert shell(line, {**environment, "MONITOR_URL": "postgresql://127.0.0.1:1/d"}).returncode == 1
    assert (tmp_path / "dislock.prom").read_text() == text


def test_prometheus_reads_the_metrics(environment: dict[str, str], promtool: str) -> None:
    failed_run(environment["DATABASE_URL"])
    done = shell(f"dislock.pyz --metrics DATABASE_URL | {promtool} check metrics", environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_ping_is_sent_once_by_the_run_that_succeeded(environment: dict[str, str], tmp_path: Path) -> None:
    line, ran = crontab("ping"), tmp_path / "ran"
    (tmp_path / "fail").touch()
    assert shell(line, environment).returncode != 0
    assert ran.read_text().splitlines() == ["report --all"]
    (tmp_path / "fail").unlink()
    assert shell("dislock.pyz --release report --slot --force DATABASE_URL", environment).returncode == 0
    ran.unlink()
    for _host in range(3):
        done = shell(line, environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [text.split()[0] for text in ran.read_text().splitlines()] == ["report", "curl"]
    assert "ping.example.com/report" in ran.read_text()


def test_nagios_gets_its_exit_code_and_its_line(environment: dict[str, str], tmp_path: Path) -> None:
    text = (EXAMPLES / "nagios.cfg").read_text()
    (line,) = re.findall(r"^ *command_line +(.*)$", text, re.MULTILINE)
    (arguments,) = re.findall(r"^ *check_command +check_dislock!(.*)$", text, re.MULTILINE)
    command = line.replace("$ARG1$", arguments).replace("$USER5$", shlex.quote(environment["DATABASE_URL"]))
    command = command.replace("/usr/local/bin", str(tmp_path))
    # Nagios gives its plugins no environment to speak of.
    nothing = {"PATH": environment["PATH"]}
    missing = shell(command, nothing)
    assert (missing.returncode, missing.stdout.splitlines()[0]) == (
        2, "DISLOCK CRITICAL - 1 of 1 job not well: report (never ran)",
    )  # fmt: skip
    failed_run(environment["DATABASE_URL"])
    assert "report (exit 1)" in shell(command, nothing).stdout
    assert shell(command.replace("dislock_runs", "no_such"), nothing).returncode == 3


def test_icinga_builds_a_command_that_is_understood(environment: dict[str, str], tmp_path: Path) -> None:
    text = (EXAMPLES / "icinga2.conf").read_text()
    options = re.findall(r'^ +"(--[a-z-]+)" =', text, re.MULTILINE)
    action = find_action("--overdue")
    assert action is not None
    assert options
    assert set(options) <= set(action.modifiers)
    assert re.search(r"repeat_key = true", text)
    words = ["--late", "300", "--expect", "report", "--expect", "import"]
    (first,) = re.findall(r'command = \[ "/usr/local/bin/(dislock.pyz)", "--overdue" \]', text)
    done = subprocess.run(
        [str(tmp_path / first), "--overdue", *words, "DATABASE_URL"], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count("never ran")) == (2, 4)
