"""The part of the file that every start runs: find the cache, set the path, call dislock.

Most starts load it, compiled, from the cache (`place` looks for it). The others compile it, so it is short and imports
only what the interpreter has loaded already. What only a first start needs is in `unpack`.
"""

from __future__ import annotations

import _imp
import fcntl
import marshal
import os
import sys
import time
from _frozen_importlib_external import SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader

from _bootstrap.place import UnsafeError, check, key, opened, refuse_others, roots, sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import NoReturn

    from typing_extensions import Buffer

BUILD = "@BUILD@"
DAY = 86400
LOST = 600  # s after which no process is still writing a cache to disk
LATER = {"sqlalchemy": "sqlalchemy", "tzdata": "tzdata.zip"}


def fail(sentence: str, code: int = 2) -> NoReturn:
    sys.stderr.write(f"dislock: {sentence}\n")
    sys.stderr.flush()
    raise SystemExit(code)


def restore_environment() -> dict[bytes, bytes] | None:
    """Undoes what the launcher's shell did to the environment. None: there is no copy (no /proc, no suitable od)."""
    os.environ.pop("_dislock_lacks", None)
    parts: list[str] = []
    while (part := os.environ.pop(f"DISLOCK_ENVIRON_{len(parts)}", None)) is not None:
        parts.append(part)
    if not parts:
        return None
    try:
        entries = bytes.fromhex(" ".join(parts)).split(b"\0")
    except ValueError:
        return None
    original: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        # Wine leaves an empty name, which putenv and unsetenv refuse.
        if equals and name:
            original.setdefault(name, value)
    for name in os.environb.keys() - original.keys() - {b""}:
        del os.environb[name]
    for name, value in original.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
    return original


def occupy_closed_descriptors() -> None:
    """Otherwise the cache's lock could get the number of a closed standard stream, and messages would go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def ready(root: str, archive: str) -> str:
    """The cache in `root`, if it is whole. Then nobody removes it while this process runs from it."""
    try:
        folder = f"{check(root)}/{key()}"
        refuse_others(folder)
        lock = os.open(folder + "/.lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return ""
    except OSError:
        pass  # a file system without locks: nobody removes anything from it
    found = os.fstat(lock)
    try:
        there = os.stat(folder + "/.lock")
    except FileNotFoundError:
        there = None
    # Removed or replaced between the two calls; or written just before a crash, and perhaps not completely to disk.
    if there is None or not os.path.samestat(found, there) or (found.st_size and os.read(lock, 64) != boot()):
        os.close(lock)
        return ""
    if not whole(folder):
        os.close(lock)
        return ""
    if time.time() - found.st_mtime > (LOST if found.st_size else DAY):
        try:
            os.utime(lock)
        except OSError:
            return folder
        if found.st_size:
            try:
                load(archive, "tidy").in_background(os.path.dirname(folder), folder)
            except Exception:  # noqa: BLE001, S110 - this start needs nothing of the archive, whatever is wrong with it
                pass
    return folder


def whole(folder: str) -> bool:
    """Whether all unpacked files exist: programs that delete old files leave the lock, which is always new."""
    try:
        with open(f"{folder}/.files", "rb") as file:
            sizes: dict[str, int] = marshal.loads(opened(file.read()))  # noqa: S302 - as safe as the bytecode beside it
        return all(os.stat(f"{folder}/{name}").st_size == size for name, size in sizes.items())
    except OSError:
        return False


def boot() -> bytes:
    """Identifies the current boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def can_execute(folder: str) -> bool:
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)  # macOS and FreeBSD have no name for it


class ReplacedError(Exception):
    """The archive was replaced by another build."""


def load(archive: str, name: str) -> ModuleType:
    """A module that few starts need, from the archive."""
    sys.path.insert(0, archive)
    try:
        if __import__("_bootstrap.start", fromlist=["BUILD"]).BUILD != BUILD:
            raise ReplacedError
        return __import__(f"_bootstrap.{name}", fromlist=["start"])
    finally:
        sys.path.remove(archive)


def cold(archive: str, name: str) -> ModuleType:
    """The same, for a start that cannot go on without it."""
    try:
        return load(archive, name)
    except ReplacedError:
        fail(f"{archive} was replaced while it ran", 1)
    except Exception as reason:  # noqa: BLE001 - a changed or incomplete archive fails in many ways
        fail(f"{archive} is damaged ({reason}): copy it anew", 1)


def locate(archive: str) -> str:
    """The folder with everything unpacked. Makes it if necessary."""
    why: list[str] = []
    for root, named in roots():
        try:
            folder = ready(root, archive) or cold(archive, "unpack").into(root, archive)
            if can_execute(folder):
                return str(folder)
            raise OSError(f"{root} does not allow programs (mounted noexec)")
        except UnsafeError as reason:
            if named:
                fail(f"DISLOCK_CACHE is refused: {reason}")
            sys.stderr.write(f"dislock: cache folder refused: {reason}\n")
        except OSError as reason:
            why.append(f"{root}: {reason.strerror or reason}")
            if named:
                sys.stderr.write(f"dislock: DISLOCK_CACHE cannot be used: {why[-1]}\n")
    return str(cold(archive, "unpack").temporary(archive, why))


class Loader(SourceFileLoader):
    """Python's own, but it writes whole bytecode files or none: older Pythons leave half a file on a full disk."""

    def get_data(self, path: str) -> bytes:
        content = super().get_data(path)
        return opened(content) if path.endswith(".pyc") else content

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0o666) -> None:
        try:
            write(path, sealed(bytes(data)))
        except OSError:
            pass  # without it a start is only slower


def write(target: str, content: bytes) -> None:
    """Writes the whole file or nothing: another process may be writing or reading the same file."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    new = f"{target}.{os.getpid()}"
    try:
        with open(new, "xb") as file:
            file.write(content)
        os.rename(new, target)
    except OSError:
        try:
            os.unlink(new)
        except OSError:
            pass
        raise


def import_from(folder: str) -> None:
    """Makes Python import with our loader what is in this folder."""
    finder = FileFinder.path_hook((ExtensionFileLoader, _imp.extension_suffixes()), (Loader, SOURCE_SUFFIXES))

    def ours(path: str) -> PathEntryFinder:
        if not path.startswith(folder):
            raise ImportError
        return finder(path)

    sys.path_hooks.insert(0, ours)


class Later:
    """Unpacks what most runs never import, and keeps psycopg from silently using another libpq."""

    def __init__(self, archive: str, folder: str) -> None:
        self.archive, self.folder = archive, folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in LATER:
            place = f"{self.folder}/{LATER[name]}"
            # A zip file is one of the folder's own files, which the start has checked.
            if not place.endswith(".zip") and not whole(place):
                place = cold(self.archive, "unpack").later(self.archive, self.folder, LATER[name])
            if place not in sys.path:
                import_from(place)
                sys.path.append(place)
            from importlib.machinery import PathFinder

            return PathFinder.find_spec(name, [place])
        if name == "psycopg.pq.pq_ctypes":
            cold(self.archive, "unpack").allow_ctypes(self.archive, self.folder)
        return None


def absolute(path: str) -> str:
    """The absolute path; unchanged if the working directory is gone, as in `site`."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def isolate(archive: str, *, keep_packages: bool) -> None:
    """For `python3 dislock.pyz`: removes from the path what the launcher's options keep off it."""
    ours = {archive, sys.argv[0]}
    if not keep_packages and (given := os.environ.get("PYTHONPATH")):
        # `site` has made the entries absolute. Python's own modules stay, even if PYTHONPATH names them, too.
        own = os.path.dirname(os.__file__)
        theirs = {absolute(entry) for entry in given.split(os.pathsep)} - {own, f"{own}/lib-dynload"}
        ours.update(entry for entry in sys.path if absolute(entry) in theirs)
    sys.path[:] = [
        entry
        for entry in sys.path
        if entry not in ours and (keep_packages or os.path.basename(entry) not in ("site-packages", "dist-packages"))
    ]


def main(*, launched: bool) -> None:
    script, unpack = (sys.argv[1:2] == [option] for option in ("--python", "--unpack"))
    try:
        occupy_closed_descriptors()
        environment = restore_environment() if launched else None
        archive = absolute(sys.argv[0])
        if not os.path.isabs(archive):
            fail(f"the working directory is gone: start {archive} by its absolute path")
        isolate(archive, keep_packages=script)
        if unpack:
            cold(archive, "complete").run(archive)
            return
        folder = locate(archive)
        import_from(folder)
        sys.path.insert(0, folder + "/site-packages")
        sys.meta_path.insert(0, Later(archive, folder))
        if not script:
            from dislock.cli import entry
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # nothing was started; from `entry` on, signals are held back
    if script:
        cold(archive, "script").run()
    else:
        entry(environment)
