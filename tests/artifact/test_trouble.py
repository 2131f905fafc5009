"""What a host may lack: processes beside a start, an orderly end, what only Linux has."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.artifact.support import (
    STRANGER,
    Zipapp,
    finish,
    lock,
    on_the_disk,
    one_line,
    patched,
    start,
    temporary_folders,
)
from tests.artifact.test_cache import as_root, in_mounts
from tests.support.contract import Ran
from tests.support.need import need_program
from tests.support.wait import until

#: Brings in the part that stays packed until it is imported.
LATER = "import sqlalchemy; print(sqlalchemy.__file__)"
BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Runs a program for which children end unseen, as some supervisors leave it.
UNSEEN = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


class TestHelpers:
    """The processes beside a first start are a convenience, except for the one that removes a temporary folder."""

    @pytest.mark.parametrize("started", [["bash"], ["dash"], ["busybox", "sh"], ["python3.15"]], ids=lambda s: s[0])
    def test_children_end_unseen(self, zipapp: Zipapp, python: str, started: list[str]) -> None:
        program = str(zipapp.folder / "bin" / "python3.15") if "python" in started[0] else need_program(started[0])
        ran = zipapp.run("--version", command=[python, "-c", UNSEEN, program, *started[1:]])
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
        on_the_disk(zipapp)

    @pytest.fixture
    def few(self, zipapp: Zipapp) -> Iterator[Zipapp]:
        """As an account that has no other process and one place for a cache."""
        home = zipapp.folder / "home"
        home.mkdir()
        os.chown(home, STRANGER, STRANGER)
        zipapp.environment |= {"XDG_CACHE_HOME": str(home), "HOME": str(home)}
        before = temporary_folders()
        yield zipapp
        until(lambda: temporary_folders() <= before, what="the removal of the temporary folder")

    def limited(self, few: Zipapp, processes: int, *argv: str, **environ: str) -> Ran:
        python = few.run("--python", "-c", "import sys; print(sys.executable)", uid=STRANGER, HOME="/").out.strip()
        command = [need_program("prlimit", "util-linux"), f"--nproc={processes}", python]
        return few.run(*argv, command=command, uid=STRANGER, **environ)

    @as_root
    @pytest.mark.parametrize("processes", [1, 2])
    def test_there_can_be_none(self, few: Zipapp, processes: int) -> None:
        few.environment["XDG_CACHE_HOME"] += "/limited"
        ran = self.limited(few, processes, "--version")
        assert (ran.code, ran.out[:8], ran.err) == (0, "dislock ", "")
        assert len(few.caches()) == 1

    @as_root
    @pytest.mark.parametrize("processes", [1, 2])
    def test_no_temporary_folder_without_one_that_removes_it(self, few: Zipapp, processes: int) -> None:
        ran = self.limited(few, processes, "--version", XDG_CACHE_HOME="", HOME="/")
        one_line(ran, 1, "no place to unpack to", "/tmp: ")

    def test_one_that_was_killed_is_started_again(self, zipapp: Zipapp) -> None:
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        lock(zipapp).write_bytes(BOOT.read_bytes().strip())
        # Longer ago than the writing of a cache to a disk may take.
        os.utime(lock(zipapp), (time.time() - 3600,) * 2)
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)

    def test_a_request_to_leave_ends_the_one_that_only_tidies_up(self, zipapp: Zipapp, python: str) -> None:
        """A unit of systemd has ended only when its last process has."""
        patched(zipapp, python, "import time\nos.sync = lambda: time.sleep(100)")
        assert zipapp.run("--version").code == 0
        [cache] = zipapp.caches()

        def tidiers() -> list[psutil.Process]:
            return [process for process in psutil.process_iter() if cache / "start" in opened(process.pid)]

        until(tidiers, what="the process beside the start")
        [tidier] = tidiers()
        tidier.terminate()
        tidier.wait(timeout=30)
        assert lock(zipapp).stat().st_size

    def test_a_kill_right_after_a_temporary_folder_is_made(self, zipapp: Zipapp, python: str, tmp_path: Path) -> None:
        note = tmp_path / "made"
        patched(
            zipapp, python,
            f"""
make = os.mkdir
def killed(name, *mode):
    make(name, *mode)
    if "/dislock-" in name:
        with open({str(note)!r}, "w") as note:
            note.write(name)
        os.kill(os.getpid(), 9)
os.mkdir = killed
""",
        )  # fmt: skip
        assert zipapp.run("--version", DISLOCK_CACHE="/proc/nowhere").code == -signal.SIGKILL
        made = Path(note.read_text())
        until(lambda: not made.exists(), what="the removal of the temporary folder")


class TestNoRoomForALaterPart:
    @as_root
    def test_there_is_some_elsewhere(self, zipapp: Zipapp) -> None:
        before = temporary_folders()
        mounts = 'mkdir "$XDG_CACHE_HOME"; mount -t tmpfs -o size=16m,mode=700 none "$XDG_CACHE_HOME"'
        code = "import psycopg, sqlalchemy; print(psycopg.__file__, sqlalchemy.__file__, sep='\\n')"
        ran = zipapp.run("--python", "-c", code, command=in_mounts(mounts))
        assert (ran.code, ran.err) == (0, "")
        own, later = ran.out.splitlines()
        assert own.startswith(str(zipapp.root))
        assert "/dislock-" in later
        until(lambda: temporary_folders() <= before, what="the removal of the temporary folder")

    def test_there_is_none(self, zipapp: Zipapp, python: str) -> None:
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        patched(
            zipapp, python,
            """
make = os.mkdir
def full(name, *mode):
    if "/.new-" in name or "/dislock-" in name:
        raise OSError(28, "No space left on device")
    make(name, *mode)
os.mkdir = full
""",
        )  # fmt: skip
        ran = zipapp.run("--python", "-c", LATER)
        one_line(ran, 1, "no place to unpack sqlalchemy to", str(zipapp.root), "/tmp: No space left on device")
        assert zipapp.half_made() == []


class TestCrashAfterALaterPart:
    """SQLAlchemy joins a cache that has long been on the disk."""

    @pytest.fixture
    def joined(self, zipapp: Zipapp, python: str) -> Zipapp:
        """The machine goes down right afterwards: nothing writes it to the disk."""
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        patched(zipapp, python, "def none(): raise BlockingIOError(11, 'none')\nos.fork = none")
        assert zipapp.python(LATER).startswith(str(zipapp.root))
        del zipapp.environment["DISLOCK_PYTHON"]
        return zipapp

    def test_all_is_unpacked_again(self, joined: Zipapp) -> None:
        assert lock(joined).read_bytes() == BOOT.read_bytes().strip()
        lock(joined).write_text("of another boot")
        Path(joined.python(LATER)).write_text("")
        lock(joined).write_text("of another boot")
        assert joined.python("import sqlalchemy; print(sqlalchemy.create_engine.__name__)") == "create_engine"

    def test_it_reaches_the_disk(self, zipapp: Zipapp) -> None:
        assert zipapp.run("--version").code == 0
        on_the_disk(zipapp)
        zipapp.python(LATER)
        on_the_disk(zipapp)


#: What `os` has on Linux alone, of all that a start could ask for.
LINUX = """
others = "sched_getaffinity pipe2 posix_fadvise memfd_create eventfd pidfd_open splice O_PATH O_TMPFILE".split()
for name in [*(name for name in dir(os) if name.startswith("ST_")), *others]:
    if name not in ("ST_RDONLY", "ST_NOSUID") and hasattr(os, name):
        delattr(os, name)
"""


@as_root
@pytest.mark.parametrize("proc", ["true", "mount -t tmpfs none /proc"], ids=["with-proc", "without"])
def test_a_system_that_is_not_linux(zipapp: Zipapp, python: str, proc: str) -> None:
    patched(zipapp, python, LINUX)
    for _ in range(2):
        ran = zipapp.run("--python", "-c", LATER, command=in_mounts(proc))
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith(str(zipapp.root))
    on_the_disk(zipapp)


def test_an_interrupt_of_a_start_that_waits_to_unpack(zipapp: Zipapp) -> None:
    """Nothing was started: 130, as for every interrupt before that, and not a word."""
    zipapp.root.mkdir(parents=True, mode=0o700)
    unpacking = zipapp.root / ".unpacking"
    with unpacking.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = zipapp.start("DATABASE_URL", "true")
        until(lambda: unpacking in opened(process.pid), what="the wait")
        process.send_signal(signal.SIGINT)
        ran = finish(process)
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize("module", ["_bootstrap.start", "fcntl"])
def test_an_interrupt_while_python_in_front_loads_the_start(zipapp: Zipapp, python: str, module: str) -> None:
    code = f"""
import os, runpy, signal, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupted())
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    ran = zipapp.run("--version", command=[python, "-c", code])
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize("by", ["launcher", "python"])
def test_the_working_directory_is_gone(zipapp: Zipapp, by: str) -> None:
    command = [str(zipapp.folder / "bin" / "python3.15")] if by == "python" else []
    gone = zipapp.folder / "gone"
    for name, code in ((str(zipapp.file), 0), ("../dislock.pyz", 2)):
        gone.mkdir()
        process = start(
            ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *command, name, "--version"], zipapp.environment, gone
        )
        ran = finish(process)
        assert (ran.code, ran.out[:8]) == (code, "" if code else "dislock ")
        if code:
            # Before it, the shell has its say.
            one_line(
                Ran(code, "", ran.err.splitlines(True)[-1]), code, "the working directory is gone", "absolute path"
            )


def opened(pid: int) -> list[Path]:
    """The files that a process has open."""
    try:
        return [Path(file.path) for file in psutil.Process(pid).open_files()]
    except psutil.Error:
        return []  # gone, or somebody else's
