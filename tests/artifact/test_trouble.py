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

from tests.artifact.support import STRANGER, Zipapp, finish, lock, on_the_disk, one_line, patched, temporary_folders
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


def opened(pid: int) -> list[Path]:
    """The files that a process has open."""
    return [Path(file.path) for file in psutil.Process(pid).open_files()]
