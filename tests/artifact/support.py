"""Running the file, and looking at what it leaves behind."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.contract import Ran
from tests.support.need import need_program
from tests.support.wait import until

#: Prints where psycopg comes from and which implementation it is.
IMPLEMENTATION = "import psycopg, sys; print(psycopg.pq.__impl__, psycopg.__file__)"
#: What a system without any Python has.
PLAIN_PATH = "/usr/bin:/bin"
NOBODY = 65534
#: An account that no file knows.
STRANGER = 54321
#: What /bin/sh may be.
SHELLS = ("dash", "bash", "bash --posix", "busybox sh")


def links(folder: Path, python: str, name: str = "python3.15") -> str:
    """A PATH on which this is the newest Python, whatever its version, and the shell's programs are found."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).is_symlink():
        (folder / name).symlink_to(python)
    return f"{folder}:{PLAIN_PATH}"


@dataclass
class Zipapp:
    """The file under test, with an environment of its own."""

    file: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where its cache belongs."""
        return Path(self.environment["XDG_CACHE_HOME"]) / "dislock"

    def caches(self, root: Path | None = None) -> list[Path]:
        """The cache folders that are there, whole ones only."""
        folder = root or self.root
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []

    def half_made(self, root: Path | None = None) -> list[Path]:
        return [p for p in (root or self.root).iterdir() if p.name.startswith((".new-", ".old-"))]

    def run(self, *argv: str, command: Sequence[str] = (), uid: int | None = None, **environ: str) -> Ran:
        """Run it to its end; as another account with ``uid``, below another program with ``command``."""
        return finish(start([*command, str(self.file), *argv], {**self.environment, **environ}, self.folder, uid))

    def start(
        self, *argv: str, umask: int = -1, stdin: int = subprocess.DEVNULL, **environ: str
    ) -> subprocess.Popen[bytes]:
        return start([str(self.file), *argv], {**self.environment, **environ}, self.folder, umask=umask, stdin=stdin)

    def python(self, code: str, **environ: str) -> str:
        """What a script with the file's packages prints."""
        arguments = [str(self.file), "--python", "-c", code]
        ran = finish(start(arguments, {**self.environment, **environ}, self.folder))
        assert (ran.code, ran.err) == (0, "")
        return ran.out.strip()


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    uid: int | None = None,
    umask: int = -1,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env={name: value for name, value in environment.items() if value != ""},
        cwd=folder,
        umask=umask,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes], seconds: float = 120) -> Ran:
    out, err = process.communicate(timeout=seconds)
    return Ran(process.returncode, out.decode(), err.decode())


def shell(name: str) -> list[str]:
    """The command of one of SHELLS."""
    program, *options = name.split()
    return [need_program(program), *options]


def lock(zipapp: Zipapp) -> Path:
    """The file that is empty once its cache has reached the disk."""
    [cache] = zipapp.caches()
    return cache / ".lock"


def on_the_disk(zipapp: Zipapp) -> None:
    until(lambda: lock(zipapp).stat().st_size == 0, what="the note that the cache is on the disk")


def patched(zipapp: Zipapp, python: str, change: str) -> None:
    """Run it with a Python that is changed by these statements before anything of the file is carried out."""
    wrapper = zipapp.folder / "patched-python"
    # The launcher's arguments: -E -s -S -c PROGRAM FILE ...
    wrapper.write_text(
        f"#!{python} -ESs\nimport os, sys\n{change}\n"
        "program = sys.argv[5]\nsys.argv[:] = ['-c', *sys.argv[6:]]\nexec(program)\n"
    )
    wrapper.chmod(0o755)
    zipapp.environment["DISLOCK_PYTHON"] = str(wrapper)


def written(folder: Path) -> int:
    """Bytes on the disk below a folder."""
    return sum(entry.lstat().st_blocks * 512 for entry in folder.rglob("*"))


def one_line(ran: Ran, code: int, *words: str) -> None:
    """It ended with this code, and said why in one sentence with these words."""
    assert ran.code == code, ran
    assert ran.err.startswith("dislock: "), ran
    assert ran.err.count("\n") == 1, ran
    for word in words:
        assert word in ran.err, ran


def temporary_folders() -> set[str]:
    """What runs without a cache have left or use now."""
    return {str(path) for base in ("/tmp", "/var/tmp", "/dev/shm") for path in Path(base).glob("dislock-*")}
