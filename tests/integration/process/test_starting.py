"""Starting the command: what it loads, and that a broken stream changes nothing. No database is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOWHERE = "postgresql://127.0.0.1:1/d"
RUN = ("--strategy=lease", "--lock-key=k", "--connect-timeout=0.01", "DATABASE_URL", "true")


def printed(program: str, *argv: str, url: str = NOWHERE) -> str:
    """What an interpreter of its own prints."""
    return subprocess.run(
        [sys.executable, "-I", "-c", program, *argv],
        env={"DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


LOADED = """
import sys
from dislock.cli.run import main
code = main(sys.argv[1:])
heavy = {"psycopg", "croniter", "sqlalchemy", "logging", "argparse", "asyncio", "socket", "subprocess", "zoneinfo"}
heavy |= {"email", "importlib.metadata"}
print(code, *sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--help"], 0),
        (["--nonsense"], 2),
        (["DATABASE_URL"], 2),
        (["--ttl=x", "--strategy=lease", "--lock-key=k", "DATABASE_URL", "true"], 2),
    ],
)
def test_what_needs_no_database_loads_nothing(argv: list[str], code: int) -> None:
    assert printed(LOADED, *argv, url="postgresql://h/d").splitlines()[-1] == str(code)


def test_a_lease_loads_no_cron_and_nothing_loads_sqlalchemy_or_looks_up_versions() -> None:
    code, *loaded = printed(LOADED, *RUN).split()
    assert code == "1"
    assert "psycopg" in loaded
    assert not {"croniter", "sqlalchemy", "email", "importlib.metadata"} & set(loaded)


OWN = """
import sys
from dislock.cli.run import main
main(sys.argv[1:])
print(*sorted(name for name in sys.modules if name.startswith("dislock.")))
"""


def test_a_run_loads_nothing_of_the_operators_commands_and_none_of_the_journal() -> None:
    loaded = printed(OWN, *RUN).split()
    assert "dislock.protocol.acquisition" in loaded
    journal = ("journal", "protocol.records", "protocol.questions", "protocol.schema")
    operators = ("drivers.questions", "cli.actions", "cli.asking", "cli.operate")
    assert [name for name in loaded if name.removeprefix("dislock.").startswith((*journal, *operators))] == []


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dislock", *argv],
        env={"PATH": os.environ["PATH"], **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_module_is_the_program() -> None:
    done = run("postgresql://u:hush@h/d", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dislock: the first argument must be the name")
    assert "hush" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help >/dev/full", 0),
        ("--help >&-", 0),
        ("--nonsense 2>/dev/full", 2),
        ("--nonsense 2>&-", 2),
        ("--nonsense >&- 2>&- <&-", 2),
    ],
)
def test_broken_streams_change_nothing(arguments: str, code: int) -> None:
    script = f'exec "$0" -m dislock {arguments}'
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")
