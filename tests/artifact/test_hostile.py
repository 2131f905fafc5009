"""Nothing is loaded that another account could have put there."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifact.support import NOBODY, STRANGER, Zipapp, finish, on_the_disk, one_line, patched, start
from tests.support.contract import Ran
from tests.support.need import need
from tests.support.wait import until

as_root = pytest.mark.skipif("os.geteuid() != 0", reason="needs root: folders of other accounts")
WHERE = "import dislock; print(dislock.__file__)"


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@as_root
class TestFolderThatSomebodyElseMakesFirst:
    """Between the look at the place of a cache that is not there and its first use, another account may make it."""

    def test_before_it_is_made(self, zipapp: Zipapp, python: str) -> None:
        place = zipapp.folder / "contested"
        # Right before this process makes it.
        patched(
            zipapp, python,
            f"""
make = os.makedirs
def made_by_another(name, *rest, **more):
    if name == {str(place)!r} and not os.path.exists(name):
        os.mkdir(name)
        os.chown(name, {NOBODY}, {NOBODY})
    make(name, *rest, **more)
os.makedirs = made_by_another
""",
        )  # fmt: skip
        ran = zipapp.run("--python", "-c", WHERE, DISLOCK_CACHE=str(place))
        one_line(ran, 2, "DISLOCK_CACHE", str(place), "belongs to another user")
        assert place.stat().st_uid == NOBODY
        assert list(place.iterdir()) == []

    @pytest.mark.parametrize("level", ["root", "cache"])
    def test_before_it_is_looked_into(self, zipapp: Zipapp, python: str, level: str) -> None:
        zipapp.run("--version")
        [cache] = zipapp.caches()
        on_the_disk(zipapp)
        prepared, place = zipapp.folder / "prepared", zipapp.folder / "contested"
        shutil.copytree(zipapp.root, prepared)
        hostile = prepared / cache.name / "start"
        hostile.write_bytes(hostile.read_bytes()[:4] + marshal.dumps(compile("print('evil')", "evil", "exec")))
        give_away(prepared)
        missing = [str(place if level == "root" else place / cache.name)]
        # Right after the last time that this process has seen nothing there.
        patched(
            zipapp, python,
            f"""
look = os.lstat
def made_by_another(name, **more):
    try:
        return look(name, **more)
    except FileNotFoundError:
        if sys._getframe(1).f_code.co_name == "refuse_others" and name in {missing}:
            try:
                os.rename({str(prepared)!r}, {str(place)!r})
            except OSError:
                pass  # it is not empty any more
        raise
os.lstat = made_by_another
""",
        )  # fmt: skip
        ran = zipapp.run("--version", DISLOCK_CACHE=str(place))
        assert "evil" not in ran.out
        if prepared.exists():
            assert (ran.code, ran.err) == (0, "")
            assert place.stat().st_uid == 0
        else:
            one_line(ran, 2, "DISLOCK_CACHE", str(place), "belongs to another user")


def test_the_lock_is_no_link_to_another_file(zipapp: Zipapp) -> None:
    zipapp.root.mkdir(parents=True, mode=0o700)
    zipapp.root.parent.chmod(0o700)
    (zipapp.root / ".unpacking").symlink_to(zipapp.folder / "victim")
    assert zipapp.run("--version", HOME=str(zipapp.folder / "home")).code == 0
    assert not (zipapp.folder / "victim").exists()


class TestTemporaryFolder:
    def in_tmpdir(self, zipapp: Zipapp, mode: int, owner: int) -> str:
        """Where the packages come from when there is no cache, and TMPDIR is this."""
        place = zipapp.folder / "tmp"
        place.mkdir()
        place.chmod(mode)
        os.chown(place, owner, -1)
        ran = zipapp.run("--python", "-c", WHERE, DISLOCK_CACHE="/proc/nowhere", TMPDIR=str(place))
        assert ran.code == 0, ran
        until(lambda: not list(place.iterdir()), what="the removal of the temporary folder")
        return str(Path(ran.out).relative_to("/")).partition("/dislock-")[0]

    @pytest.mark.parametrize("mode", [0o777, 0o702])
    def test_others_can_write_to_it(self, zipapp: Zipapp, mode: int) -> None:
        assert self.in_tmpdir(zipapp, mode, os.geteuid()) == "tmp"

    @as_root
    def test_it_is_anothers(self, zipapp: Zipapp) -> None:
        assert self.in_tmpdir(zipapp, 0o700, NOBODY) == "tmp"

    @pytest.mark.parametrize("mode", [0o1777, 0o755])
    def test_a_safe_one_is_used(self, zipapp: Zipapp, mode: int) -> None:
        assert "/" + self.in_tmpdir(zipapp, mode, os.geteuid()) == str(zipapp.folder / "tmp")


@pytest.mark.parametrize("started", [[], ["python3.15"]], ids=["launcher", "python"])
def test_a_relative_cache_is_refused(zipapp: Zipapp, started: list[str]) -> None:
    command = [str(zipapp.folder / "bin" / name) for name in started]
    for name in ("cache", "./cache", "bin/../cache"):
        ran = zipapp.run("--version", command=command, DISLOCK_CACHE=name)
        one_line(ran, 2, "DISLOCK_CACHE", name, "must be an absolute path")
    assert not (zipapp.folder / "cache").exists()


@as_root
class TestRecipes:
    """The two ways of giving a cache to an account that has no home, as docs/artifact.md has them."""

    def test_one_of_its_own(self, zipapp: Zipapp) -> None:
        place = zipapp.folder / "dislock-account"
        subprocess.run(["install", "-d", "-o", str(NOBODY), "-m", "700", str(place)], check=True)
        for _ in range(2):
            ran = zipapp.run("--python", "-c", WHERE, uid=NOBODY, DISLOCK_CACHE=str(place))
            assert (ran.code, ran.err) == (0, "")
            assert ran.out.startswith(str(place))

    def test_one_that_root_fills(self, zipapp: Zipapp) -> None:
        place = str(zipapp.folder / "dislock-all")
        python = zipapp.run("--python", "-c", "import sys; print(sys.executable)", uid=NOBODY).out.strip()
        zipapp.environment["DISLOCK_PYTHON"] = python
        ran = zipapp.run("--python", "-m", "compileall", "-q", place, DISLOCK_CACHE=place)
        assert (ran.code, ran.err) == (0, "")
        subprocess.run(["chmod", "-R", "go+rX", place], check=True)
        code = "import dislock.cli.run; print(dislock.__file__); print(dislock.cli.run.__cached__)"
        process = start(
            [str(zipapp.file), "--python", "-c", code], {**zipapp.environment, "DISLOCK_CACHE": place},
            zipapp.folder, NOBODY,
        )  # fmt: skip
        ran = finish(process)
        assert (ran.code, ran.err) == (0, "")
        source, bytecode = ran.out.splitlines()
        assert source.startswith(place)
        # Compiled by root, for everybody.
        assert Path(bytecode).stat().st_uid == 0
        assert Path(bytecode).stat().st_mode & 0o044 == 0o044


@as_root
class TestUserNamespaceWithoutTheHostsRoot:
    """All accounts outside of it show as one there, root as well as others."""

    @pytest.fixture
    def place(self) -> Iterator[Path]:
        """A folder right in /tmp."""
        folder = Path(tempfile.mkdtemp(prefix="namespace-", dir="/tmp"))
        os.chown(folder, STRANGER, STRANGER)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)

    def where(self, zipapp: Zipapp, place: Path) -> Ran:
        inside = ["unshare", "--user", "--map-root-user"]
        process = start([*inside, "true"], zipapp.environment, Path("/"), STRANGER)
        need(finish(process).code == 0, "accounts cannot make user namespaces here")
        return zipapp.run("--python", "-c", WHERE, command=inside, uid=STRANGER, DISLOCK_CACHE=str(place))

    def test_ones_own_folder(self, zipapp: Zipapp, place: Path) -> None:
        for _ in range(2):
            ran = self.where(zipapp, place)
            assert (ran.code, ran.err) == (0, "")
            assert ran.out.startswith(str(place))

    def test_a_temporary_folder(self, zipapp: Zipapp) -> None:
        ran = self.where(zipapp, Path("/nowhere"))
        assert ran.code == 0
        assert ran.out.startswith("/tmp/dislock-")

    def test_below_anothers(self, zipapp: Zipapp, place: Path) -> None:
        os.chown(place, NOBODY, NOBODY)
        below = place / "cache"
        below.mkdir(mode=0o700)
        os.chown(below, STRANGER, STRANGER)
        one_line(self.where(zipapp, below), 2, "DISLOCK_CACHE", f"{place} belongs to another user")

    def test_anothers(self, zipapp: Zipapp, place: Path) -> None:
        os.chown(place, NOBODY, NOBODY)
        one_line(self.where(zipapp, place), 2, "DISLOCK_CACHE", f"{place} belongs to another user")


@pytest.mark.parametrize("path", [".", ":", "{}/", "{}/bin/..", "/nowhere:./"])
def test_python_in_front_with_a_strange_path_for_modules(zipapp: Zipapp, python: str, path: str) -> None:
    """Its entries are on Python's own path in another spelling."""
    hostile = "import os; os.write(1, b'hostile'); raise SystemExit(99)\n"
    for name in ("argparse", "dataclasses", "logging", "shlex", "zipfile"):
        (zipapp.folder / f"{name}.py").write_text(hostile)
    for arguments in (["--help"], ["DATABASE_URL", "true"]):
        ran = zipapp.run(*arguments, command=[python], PYTHONPATH=path.format(zipapp.folder))
        assert "hostile" not in ran.out
        assert ran.code in (0, 2)


@pytest.mark.parametrize("path", ["{}", "{}/", "{0}/lib-dynload:{0}"])
def test_python_in_front_with_its_own_modules_on_that_path(zipapp: Zipapp, python: str, path: str) -> None:
    own = finish(start([python, "-c", "import os; print(os.path.dirname(os.__file__))"], {}, Path("/"))).out.strip()
    ran = zipapp.run("--version", command=[python], PYTHONPATH=path.format(own))
    assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
