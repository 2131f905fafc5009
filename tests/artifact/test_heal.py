"""A cache that lost files or holds broken ones is made whole by the next start; `--unpack` leaves a whole one."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.artifact.support import IMPLEMENTATION, NOBODY, Zipapp, on_the_disk, one_line
from tests.artifact.test_cache import as_root
from tests.support.need import need_program

UNREACHABLE = {"DATABASE_URL": "postgresql://127.0.0.1:1/x", "LOCK_KEY": "job", "LOCK_STRATEGY": "lease",
               "LOCK_CONNECT_TIMEOUT_SECONDS": "0.1"}  # fmt: skip
#: All that a run imports, SQLAlchemy, and where the natives come from.
ALL = f"{IMPLEMENTATION}; import dislock.cli.run, sqlalchemy, pg_advisory_lock"


@pytest.fixture
def whole(zipapp: Zipapp) -> Path:
    """A cache with everything in it, on the disk."""
    assert zipapp.python(ALL).startswith("binary ")
    on_the_disk(zipapp)
    [cache] = zipapp.caches()
    return cache


class TestLostFiles:
    @pytest.mark.parametrize(
        "pattern", ["*.py", "*.so*", "pq.so", "libpq-*", "tzdata.zip", "sqlalchemy/**/*.py", ".files", "start"]
    )
    def test_the_next_start_unpacks_again(self, zipapp: Zipapp, whole: Path, pattern: str) -> None:
        lost = {path for path in whole.rglob(pattern) if path.is_file()}
        assert lost
        for path in lost:
            path.unlink()
        ran = zipapp.run("--python", "-c", ALL)
        assert (ran.code, ran.err) == (0, "")
        # Never the host's libpq.
        assert ran.out.startswith(f"binary {whole}")
        assert [path for path in lost if not path.is_file() and path.name != "start"] == []

    @pytest.mark.parametrize("pattern", ["dislock/cli/run.py", "pq.so", "libpq-*", "tzdata.zip", ".files"])
    def test_one_that_was_cut_short_too(self, zipapp: Zipapp, whole: Path, pattern: str) -> None:
        path = next(whole.rglob(pattern))
        path.write_bytes(path.read_bytes()[:100])
        ran = zipapp.run("--python", "-c", ALL)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith(f"binary {whole}")

    @as_root
    def test_what_cannot_be_made_anew_is_told(self, zipapp: Zipapp, whole: Path) -> None:
        chosen = zipapp.run("--python", "-c", "import sys; print(sys.executable)", uid=NOBODY).out.strip()
        zipapp.run("--version", DISLOCK_PYTHON=chosen)
        subprocess.run(["chmod", "-R", "a+rX", str(zipapp.root.parent)], check=True)
        for cache in zipapp.caches():
            next(cache.rglob("dislock/cli/run.py")).unlink()
        ran = zipapp.run("--version", uid=NOBODY, DISLOCK_CACHE=str(zipapp.root))
        assert (ran.code, ran.out[:8]) == (0, "dislock ")
        assert ran.err.count("\n") == 1
        assert "DISLOCK_CACHE cannot be used" in ran.err
        assert "has lost files, and cannot be made anew" in ran.err


class TestBytecode:
    """A help, which is taken only as it was written."""

    @pytest.mark.parametrize("how", ["cut", "empty", "garbage", "garbage behind the head"])
    def test_a_broken_one_is_compiled_anew(self, zipapp: Zipapp, whole: Path, how: str) -> None:
        compiled = sorted((whole / "site-packages" / "psycopg").rglob("*.pyc"))
        assert len(compiled) > 50
        good = {path: path.stat().st_size for path in compiled}
        for path in compiled:
            content = path.read_bytes()
            noise = random.Random(0).randbytes(len(content))
            made = {"cut": content[:100], "empty": b"", "garbage": noise}
            path.write_bytes(made.get(how, content[:16] + noise[16:]))
        ran = zipapp.run("--python", "-c", ALL)
        assert (ran.code, ran.err) == (0, "")
        # Compiled twice, a module may share one constant more or less.
        assert [path for path, size in good.items() if abs(path.stat().st_size - size) > 500] == []

    def test_a_limit_on_files_leaves_it_whole_or_absent(self, zipapp: Zipapp, whole: Path) -> None:
        for path in whole.rglob("*.pyc"):
            path.unlink()
        # As a quota would: what is larger than 16 kB cannot be written whole.
        limited = [need_program("prlimit", "util-linux"), "--fsize=16384"]
        assert zipapp.run("--python", "-c", ALL, command=limited).out.startswith("binary ")
        written = [path.stat().st_size for path in whole.rglob("*.pyc*")]
        assert written
        assert max(written) < 16384
        ran = zipapp.run("--python", "-c", ALL)
        assert (ran.code, ran.err) == (0, "")


def test_a_native_that_is_garbage_costs_one_start(zipapp: Zipapp, whole: Path) -> None:
    path = next(whole.rglob("pq.so"))
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))
    zipapp.environment |= UNREACHABLE
    one_line(zipapp.run("DATABASE_URL", "true"), 1, "binary implementation cannot be loaded", "makes it anew")
    assert zipapp.python(IMPLEMENTATION).startswith(f"binary {whole}")


class TestUnpack:
    @pytest.mark.parametrize("before", ["nothing", "a start"])
    def test_it_leaves_a_whole_cache(self, zipapp: Zipapp, before: str) -> None:
        if before == "a start":
            zipapp.run("--version")
        ran = zipapp.run("--unpack", command=[need_program("taskset", "util-linux"), "--cpu-list", "0"])
        assert (ran.code, ran.out, ran.err) == (0, f"{zipapp.root}\n", "")
        [cache] = zipapp.caches()
        assert (cache / ".lock").stat().st_size == 0
        sources = [*cache.rglob("*.py")]
        assert any("sqlalchemy" in path.parts for path in sources)
        compiled = [path.parent.parent / path.name.partition(".")[0] for path in cache.rglob("*.pyc")]
        assert {path.with_suffix(".py") for path in compiled} == {*sources}

    @as_root
    def test_another_account_runs_from_it(self, zipapp: Zipapp) -> None:
        """As an image is built: by root, for whoever the container runs as."""
        place = zipapp.folder / "for all"
        chosen = zipapp.run("--python", "-c", "import sys; print(sys.executable)", uid=NOBODY).out.strip()
        zipapp.environment |= {"DISLOCK_CACHE": str(place), "DISLOCK_PYTHON": chosen}
        assert zipapp.run("--unpack").code == 0
        subprocess.run(["chmod", "-R", "go+rX", str(place)], check=True)
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        code = f"{ALL}; import os, dislock.cli.run as run; print(os.stat(run.__cached__).st_uid)"
        ran = zipapp.run("--python", "-c", code, uid=NOBODY)
        assert ran.err == ""
        assert ran.out == f"binary {zipapp.caches(place)[0]}/site-packages/psycopg/__init__.py\n{os.geteuid()}\n"
        assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before

    def test_where_it_cannot(self, zipapp: Zipapp) -> None:
        one_line(zipapp.run("--unpack", DISLOCK_CACHE="/proc/nowhere"), 1, "--unpack: /proc/nowhere: ")
        one_line(zipapp.run("--unpack", DISLOCK_CACHE="here"), 2, "--unpack: here must be an absolute path")
        one_line(zipapp.run("--unpack", "more"), 2, "usage: dislock.pyz --unpack")


def test_a_script_gets_the_variables_of_libraries(zipapp: Zipapp) -> None:
    """They are for the command, and a script is the command."""
    assert zipapp.python("import os; print(os.environ['PSYCOPG_IMPL'])", PSYCOPG_IMPL="c") == "c"
