"""What a start does not need is paid by nobody."""

from __future__ import annotations

import marshal
import re
from pathlib import Path

import pytest

from tests.artifact.support import Zipapp, written
from tests.support.contract import YEARLY, Ran
from tests.support.wait import until


@pytest.fixture
def traced(zipapp: Zipapp, python: str) -> Zipapp:
    """Each module that is imported is written to standard error."""
    wrapper = zipapp.folder / "tracing-python"
    wrapper.write_text(f'#!/bin/sh\nexec {python} -X importtime "$@"\n')
    wrapper.chmod(0o755)
    zipapp.environment["DISLOCK_PYTHON"] = str(wrapper)
    return zipapp


def imported(ran: Ran) -> set[str]:
    """The packages, from -X importtime."""
    return {name.partition(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", ran.err, re.MULTILINE)}


@pytest.mark.parametrize(
    ("argv", "code"), [(["--help"], 0), (["--version"], 0), ([], 2), (["NO_SUCH_URL", "true"], 2), (["--bad"], 2)]
)
def test_help_version_and_mistakes_load_no_library(traced: Zipapp, argv: list[str], code: int) -> None:
    # The first start has to unpack; what a start costs is seen on the next.
    traced.run("--version")
    ran = traced.run(*argv)
    assert ran.code == code
    assert "dislock" in imported(ran)
    assert imported(ran).isdisjoint(
        {"psycopg", "psycopg_binary", "croniter", "dateutil", "sqlalchemy", "tzdata", "asyncio"}
    )
    assert imported(ran).isdisjoint({"zipfile", "shutil", "runpy", "site", "pkgutil"})


@pytest.fixture
def marked(zipapp: Zipapp) -> Path:
    """The program as the first start compiled it, changed so that it says where it came from."""
    zipapp.run("--version")
    [cache] = zipapp.caches()
    until(lambda: (cache / ".lock").stat().st_size == 0, what="the note that the cache is on the disk")
    program = cache / "start"
    magic = program.read_bytes()[:4]
    program.write_bytes(magic + marshal.dumps(compile("print('compiled before')", "marked", "exec")))
    return program


def test_a_start_does_not_compile_the_program(zipapp: Zipapp, marked: Path) -> None:
    assert zipapp.run("--version").out == "compiled before\n"


@pytest.mark.parametrize("what", ["another Python's", "cut short", "empty", "absent", "perhaps not on the disk"])
def test_a_compiled_program_that_may_be_broken_is_not_loaded(zipapp: Zipapp, marked: Path, what: str) -> None:
    content = marked.read_bytes()
    match what:
        case "another Python's":
            marked.write_bytes(b"\0" * 4 + content[4:])
        case "cut short":
            marked.write_bytes(content[:30])
        case "empty":
            marked.write_bytes(b"")
        case "absent":
            marked.unlink()
        case _:
            (marked.parent / ".lock").write_text("of another boot")
    ran = zipapp.run("--version")
    assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_compiled_program_that_others_can_change_is_not_loaded(zipapp: Zipapp, marked: Path, above: int) -> None:
    marked.parents[above].chmod(0o777)
    ran = zipapp.run("--version")
    assert (ran.code, ran.out[:8]) == (0, "dislock ")
    assert "written by others" in ran.err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("strategy", "absent"),
    [("schedule", {"sqlalchemy", "tzdata"}), ("lease", {"sqlalchemy", "tzdata", "croniter", "dateutil"})],
)
def test_a_run_loads_only_its_own(traced: Zipapp, database_url: str, strategy: str, absent: set[str]) -> None:
    traced.environment |= {
        "DATABASE_URL": database_url,
        "LOCK_KEY": "job",
        "CRON_SCHEDULE": YEARLY,
        "LOCK_STRATEGY": strategy,
    }
    traced.run("--version")
    ran = traced.run("DATABASE_URL", "echo", "ran")
    assert (ran.code, ran.out) == (0, "ran\n")
    assert "psycopg_binary" in imported(ran)
    if not Path("/usr/share/zoneinfo/UTC").exists():
        # Without zone files the host takes the ones that came with the file.
        absent = absent - {"tzdata"}
    assert imported(ran).isdisjoint(absent | {"runpy", "site"}), imported(ran)


@pytest.mark.integration
def test_a_whole_first_run_writes_little(zipapp: Zipapp, database_url: str) -> None:
    ran = zipapp.run(
        "DATABASE_URL",
        "true",
        DATABASE_URL=database_url,
        LOCK_KEY="job",
        CRON_SCHEDULE=YEARLY,
        LOCK_STRATEGY="schedule,lease",
    )
    assert (ran.code, ran.err) == (0, "")
    assert written(Path(zipapp.environment["XDG_CACHE_HOME"])) <= 16_000_000
