"""The command line as far as it gets without a database."""

from __future__ import annotations

import platform
import sys

import pytest

from dislock._version import __version__
from dislock.cli import run as cli
from dislock.cli.options import EXAMPLES, EXIT_CODES, GIVEN, OPTIONS
from dislock.cli.output import complain, one_line
from dislock.cli.usage import usage, version
from dislock.drivers.versions import libpq


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


def test_messages_are_one_printable_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert one_line(" a\n\tb\r\nc ") == "a b c"
    assert one_line("\x1b[2J\x00\ud800\u00e9") == "\\x1b[2J\\x00\\ud800\u00e9"
    complain("two\nlines \udcff")
    assert capfd.readouterr().err == "dislock: two lines \\udcff\n"
