"""What a start does not need is paid by nobody."""

from __future__ import annotations

import contextlib
import marshal
import re
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from ci.environments import ROOT
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


@pytest.mark.parametrize(("argv", "code"), [(["--help"], 0), ([], 2), (["NO_SUCH_URL", "true"], 2), (["--bad"], 2)])
def test_help_and_mistakes_load_no_library(traced: Zipapp, argv: list[str], code: int) -> None:
    # The first start has to unpack; what a start costs is seen on the next.
    traced.run("--version")
    ran = traced.run(*argv)
    assert ran.code == code
    assert "dislock" in imported(ran)
    assert imported(ran).isdisjoint(
        {"psycopg", "psycopg_binary", "croniter", "dateutil", "sqlalchemy", "tzdata", "asyncio"}
    )
    assert imported(ran).isdisjoint({"zipfile", "shutil", "runpy", "site", "pkgutil"})


MARKED = "def main(launched): print('compiled before')"


@pytest.fixture
def marked(zipapp: Zipapp) -> Path:
    """The program as the first start compiled it, changed so that it says where it came from."""
    zipapp.run("--version")
    [cache] = zipapp.caches()
    until(lambda: (cache / ".lock").stat().st_size == 0, what="the note that the cache is on the disk")
    program = cache / "start"
    with_a_hash(zipapp, program, compile_code=MARKED)
    return program


def with_a_hash(zipapp: Zipapp, program: Path, *, compile_code: str) -> None:
    """Written as the first start writes it, by the same Python: bytecode is one version's."""
    code = (
        "import _imp, marshal, sys; from importlib.util import MAGIC_NUMBER\n"
        f"content = marshal.dumps(compile({compile_code!r}, 'marked', 'exec'))\n"
        "content += _imp.source_hash(int.from_bytes(MAGIC_NUMBER, 'little'), content)\n"
        f"open({str(program)!r}, 'wb').write(content)"
    )
    subprocess.run([zipapp.folder / "bin" / "python3.15", "-c", code], check=True)


def test_a_start_does_not_compile_the_program(zipapp: Zipapp, marked: Path) -> None:
    assert zipapp.run("--version").out == "compiled before\n"


@pytest.mark.parametrize("what", ["changed", "cut short", "empty", "absent", "perhaps not on the disk"])
def test_a_compiled_program_that_may_be_broken_is_not_loaded(zipapp: Zipapp, marked: Path, what: str) -> None:
    content = marked.read_bytes()
    match what:
        case "changed":
            marked.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
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
        "CRON_TZ": "UTC",
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


def whole_run(url: str) -> dict[str, str]:
    """The settings of a run that needs all that any run needs."""
    return {
        "DATABASE_URL": url,
        "LOCK_KEY": "job",
        "CRON_SCHEDULE": YEARLY,
        "CRON_TZ": "UTC",
        "LOCK_STRATEGY": "schedule,lease",
    }


@pytest.mark.integration
def test_a_whole_first_run_writes_little(zipapp: Zipapp, database_url: str) -> None:
    zipapp.environment |= whole_run(database_url)
    ran = zipapp.run("DATABASE_URL", "true")
    assert (ran.code, ran.err) == (0, "")
    assert written(Path(zipapp.environment["XDG_CACHE_HOME"])) <= 16_000_000


WANTED = (ROOT / "build" / "zipapp" / "inside" / "_bootstrap" / "imports").read_text().split()
#: A start that lasts until its input ends, and imports nothing of the packages.
IDLE = ("--python", "-c", "print('ready', flush=True); input()")


def bytecode(zipapp: Zipapp) -> dict[str, Path]:
    """The compiled modules in the cache, by their sources."""
    # Killed early, it leaves a folder that is not yet at its place.
    packages = next(zipapp.root.glob("*/site-packages"))
    found = (path.relative_to(packages) for path in packages.rglob("*.pyc"))
    return {str(path.parent.parent / (path.name.partition(".")[0] + ".py")): packages / path for path in found}


@pytest.mark.integration
def test_what_is_compiled_ahead_is_what_a_run_imports(
    zipapp: Zipapp, python: str, database_url: str, tmp_path: Path
) -> None:
    wrapper = zipapp.folder / "telling-python"
    wrapper.write_text(f'#!/bin/sh\nexec {python} -v "$@"\n')
    wrapper.chmod(0o755)
    zipapp.environment |= whole_run(database_url)
    assert zipapp.run("DATABASE_URL", "true").code == 0
    ran = zipapp.run("DATABASE_URL", "true", LOCK_KEY="another", DISLOCK_PYTHON=str(wrapper))
    assert ran.code == 0
    imported = re.findall(r"^# \S.* matches .*/site-packages/(\S+\.py)$", ran.err, re.MULTILINE)
    (tmp_path / "imports").write_text("".join(f"{name}\n" for name in imported))
    # Python 3.13 has all that psycopg wants of this one.
    assert imported == [name for name in WANTED if name in imported or name != "typing_extensions.py"], (
        f"as it should be: {tmp_path}/imports (from Python 3.12 or older)"
    )


def test_a_first_start_has_it_compiled_beside_it(zipapp: Zipapp) -> None:
    process = zipapp.start(*IDLE, stdin=subprocess.PIPE)
    until(lambda: zipapp.caches() and set(WANTED) <= bytecode(zipapp).keys(), what="the last module")
    [cache] = zipapp.caches()
    assert set(WANTED) == bytecode(zipapp).keys()
    for name, path in bytecode(zipapp).items():
        compiled = path.read_bytes()
        # Not to be compared with the source, and told as it will be in a traceback.
        assert compiled[4:8] == b"\1\0\0\0"
        assert marshal.loads(compiled[16:-8]).co_filename == f"{cache}/site-packages/{name}"
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    # As Python would have compiled it, or it would not be loaded when somebody asks for a comparison.
    checked = "import dislock.cli.run, psycopg, sys; print(sys.flags.dont_write_bytecode)"
    before = {path: path.stat().st_mtime_ns for path in bytecode(zipapp).values()}
    command = [str(zipapp.folder / "bin" / "python3.15"), "--check-hash-based-pycs", "always"]
    assert zipapp.run("--python", "-c", checked, command=command).code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def helpers(zipapp: Zipapp) -> list[int]:
    """The processes that work in the cache."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.cwd().startswith(str(zipapp.root)):
                found.append(process.pid)
    return found


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_what_compiles_ends_with_the_start(zipapp: Zipapp, number: int | None) -> None:
    process = zipapp.start(*IDLE, stdin=subprocess.PIPE)
    until(lambda: helpers(zipapp), what="the process beside it")
    if number is not None:
        process.send_signal(number)
    process.communicate(b"\n", timeout=60)
    until(lambda: not helpers(zipapp), what="its end")
    assert not [*zipapp.root.rglob("*.pyc.*")]


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        pytest.param(["taskset", "--cpu-list", "0"], {}, id="one-processor"),
        pytest.param(["python3.15"], {"PYTHONDONTWRITEBYTECODE": "1"}, id="no-bytecode"),
        pytest.param(["python3.15"], {"PYTHONPYCACHEPREFIX": "/tmp/bytecode"}, id="elsewhere"),
    ],
)
def test_nothing_is_compiled_ahead_where_it_would_not_help(
    zipapp: Zipapp, command: list[str], environ: dict[str, str]
) -> None:
    argv = [shutil.which(command[0], path=zipapp.environment["PATH"]) or command[0], *command[1:]]
    zipapp.environment |= environ
    ran = zipapp.run("--python", "-c", "import time; time.sleep(1)", command=argv)
    assert (ran.code, ran.err) == (0, "")
    assert not bytecode(zipapp)
