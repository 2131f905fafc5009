"""The command line as far as it gets without a database."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dislock._version import __version__
from dislock.cli import run as cli
from dislock.cli.options import EXAMPLES, EXIT_CODES, GIVEN, OPTIONS
from dislock.cli.output import complain, one_line
from dislock.cli.usage import usage, version
from dislock.drivers.versions import libpq

ROOT = Path(__file__).parents[2]


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
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *argv],
        env={"DATABASE_URL": "postgresql://h/d"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str(code)


def test_a_lease_loads_no_cron_and_nothing_loads_sqlalchemy_or_looks_up_versions() -> None:
    argv = ["--strategy=lease", "--lock-key=k", "--connect-timeout=0.01", "DATABASE_URL", "true"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *argv],
        env={"DATABASE_URL": "postgresql://127.0.0.1:1/d"},
        capture_output=True,
        text=True,
        check=True,
    )
    code, *loaded = done.stdout.split()
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
    argv = ["--strategy=lease", "--lock-key=k", "--connect-timeout=0.01", "DATABASE_URL", "true"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", OWN, *argv],
        env={"DATABASE_URL": "postgresql://127.0.0.1:1/d"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.split()
    assert "dislock.protocol.acquisition" in loaded
    journal = ("journal", "protocol.records", "protocol.questions", "protocol.schema")
    operators = ("drivers.questions", "cli.actions", "cli.asking", "cli.operate")
    assert [name for name in loaded if name.removeprefix("dislock.").startswith((*journal, *operators))] == []


def test_help_names_everything(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out == usage()
    text = " ".join(out.split())
    for option in OPTIONS:
        assert f"{option.option} {option.metavar}, {option.variable}" in text
        assert option.help in text
        assert option.default is None or f"default: {option.default}" in text
    for name, meaning in (*EXIT_CODES, *GIVEN):
        assert f"{name} {meaning}" in text
    assert out.count("DATABASE_URL") == len(EXAMPLES)
    assert max(len(line) for line in out.splitlines()) <= 80


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out == f"dislock {__version__} (CPython {platform.python_version()}, libpq {libpq()})\n"
    assert libpq() != "none"


def test_version_where_libpq_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert version().endswith(", libpq none)\n")


def test_a_configuration_error_is_one_line_and_2(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hush@h/d")
    monkeypatch.delenv("LOCK_KEY", raising=False)
    assert cli.main(["DATABASE_URL", "true"]) == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", "dislock: LOCK_KEY (or --lock-key) is not set\n")


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


def test_messages_are_one_printable_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert one_line(" a\n\tb\r\nc ") == "a b c"
    assert one_line("\x1b[2J\x00\ud800\u00e9") == "\\x1b[2J\\x00\\ud800\u00e9"
    complain("two\nlines \udcff")
    assert capfd.readouterr().err == "dislock: two lines \\udcff\n"
