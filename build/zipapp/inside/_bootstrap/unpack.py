"""What a first start needs: unpack this host's part of the archive, whole or not at all.

Nothing here runs on a later start, except for the parts that stay in the archive until they are imported.
"""

from __future__ import annotations

import fcntl
import io
import marshal
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from zipimport import zipimporter

from _bootstrap import ahead, start, tidy
from _bootstrap.place import UnsafeError, check, key, platform, sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MUSL_NEEDED = (1, 2, 4)
PATIENCE = 20.0  # s that a start waits for another one that unpacks already, before it unpacks for itself


@contextmanager
def private() -> Iterator[None]:
    """What is made in here is its owner's alone, and fully so, whatever the umask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@private()
def into(root: str, archive: str) -> str:
    """Make the cache in `root`. OSError and UnsafeError say why it cannot be had."""
    os.makedirs(root, exist_ok=True)
    # Only now, since somebody else may have made it.
    root = check(root)
    if not start.can_execute(root):
        raise OSError("does not allow programs (mounted noexec)")
    folder = f"{root}/{key()}"
    if os.path.exists(folder) and not os.access(root, os.W_OK):
        raise OSError(f"{folder} has lost files, and cannot be made anew")
    with one_at_a_time(root):
        if found := start.ready(root, archive):
            return found
        with new_folder(root) as new:
            fill(new, folder, archive)
            put(new, folder, archive)
    tidy.in_background(root, folder)
    return folder


@private()
def temporary(archive: str, why: list[str]) -> str:
    """A folder of this process's own, removed when it ends or becomes the command. Where none can be had, exit."""
    for base in temporary_places():
        end = -1
        try:
            if not start.can_execute(base):
                raise OSError("does not allow programs (mounted noexec)")
            folder, end = temporary_folder(base)
            fill(folder, folder, archive)
        except (OSError, UnsafeError) as reason:
            if end >= 0:
                os.close(end)
            why.append(f"{base}: {getattr(reason, 'strerror', '') or reason}")
        else:
            return folder
    return start.fail(f"no place to unpack to ({'; '.join(why)}); DISLOCK_CACHE can name one", 1)


@private()
def later(archive: str, folder: str, part: str) -> str:
    """The path entry of a part that stays in the archive until it is imported. Where there is no room for it, exit."""
    why: list[str] = []
    packed = Archive(archive).read(f"later/{part}.zip")
    if os.access(folder, os.W_OK):
        try:
            return join(folder, archive, part, packed)
        except OSError as reason:
            why.append(f"{folder}: {reason.strerror or reason}")
    for base in temporary_places():
        end = -1
        try:
            made, end = temporary_folder(base)
            return join(made, archive, part, packed)
        except (OSError, UnsafeError) as reason:
            if end >= 0:
                os.close(end)
            why.append(f"{base}: {getattr(reason, 'strerror', '') or reason}")
    return start.fail(f"no place to unpack {part} to ({'; '.join(why)})", 1)


def join(folder: str, archive: str, part: str, packed: bytes) -> str:
    """Unpack a part beside what is in the folder already."""
    import zipfile

    place = f"{folder}/{part}"
    cached = os.path.basename(folder) == key()
    with new_folder(folder) as new, zipfile.ZipFile(io.BytesIO(packed)) as inner:
        write_all(new, ((name, inner.read(name)) for name in inner.namelist()))
        if cached:
            doubt(folder)
        put(new, place, archive)
    if cached:
        tidy.in_background(os.path.dirname(folder), folder)
    return place


def doubt(folder: str) -> None:
    """Have the whole cache made anew if the machine goes down before it has reached the disk."""
    lock = os.open(f"{folder}/.lock", os.O_WRONLY | os.O_CLOEXEC)
    os.write(lock, start.boot())
    os.fsync(lock)
    os.close(lock)


def temporary_places() -> Iterable[str]:
    places = dict.fromkeys((os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp", "/dev/shm"))
    return (place for place in places if place.startswith("/"))


def temporary_folder(base: str) -> tuple[str, int]:
    """A folder of this process's own, and what keeps it there. OSError and UnsafeError: `base` has none for it."""
    made = f"{base}/dislock-{os.urandom(8).hex()}"
    # First the process that removes it: without one, or if this process ended in between, it would be left behind.
    end = tidy.remove_at_end(made)
    try:
        os.mkdir(made)
        try:
            return check(made), end
        except (OSError, UnsafeError):
            os.rmdir(made)
            raise
    except (OSError, UnsafeError):
        tidy.keep(end)
        raise


def fill(folder: str, place: str, archive: str) -> None:
    """Unpack what this Python needs, to be moved to its place. The lock is held while this process lives."""
    lock = os.open(f"{folder}/.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    os.write(lock, start.boot())
    whole = Archive(archive)
    ahead.begin(folder, place, whole)
    if whole.natives():
        refuse_old_musl()
    members = {**whole.packages(), **whole.natives(), "later/tzdata.zip": "tzdata.zip"}
    code = compile(whole.unchecked("_bootstrap/start.py"), "dislock.pyz/start.py", "exec")
    write(f"{folder}/start", sealed(marshal.dumps(code)))
    write_all(folder, ((new, whole.read(name)) for name, new in members.items()))


def write_all(folder: str, contents: Iterable[tuple[str, bytes]]) -> None:
    """The files of a folder, and how large each one is, by which a later start sees whether they are still there."""
    sizes = {}
    for name, content in contents:
        write(f"{folder}/{name}", content)
        sizes[name] = len(content)
    write(f"{folder}/.files", sealed(marshal.dumps(sizes)))


class Archive:
    """Reads the file by the directory that the import system has of it already; zipfile would cost a start 30 ms."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._importer = zipimporter(path)
        # The first line is the sum of the others.
        own, _, rest = self.unchecked("_bootstrap/sums").partition(b"\n")
        if own != b"%d" % zlib.crc32(rest):
            self.refuse("_bootstrap/sums")
        lines = rest.decode().splitlines()
        self.sums = {name: int(number) for number, _, name in (line.partition(" ") for line in lines)}

    def packages(self) -> dict[str, str]:
        """The members that every Python needs, and where they go to."""
        return {name: name for name in self.sums if name.startswith("site-packages/")}

    def natives(self) -> dict[str, str]:
        """Those that are for this Python on this platform; none, where nothing in the file is."""
        libraries = f"natives/{platform()}/psycopg_binary.libs/"
        extensions = f"natives/{platform()}/{sys.implementation.cache_tag}{abi()}/"
        if not any(name.startswith(extensions) for name in self.sums):
            return {}
        moves = {libraries: "site-packages/psycopg_binary.libs/", extensions: "site-packages/psycopg_binary/"}
        return {
            name: new + name[len(old) :] for name in self.sums for old, new in moves.items() if name.startswith(old)
        }

    def read(self, name: str) -> bytes:
        """A member's content, checked as zipfile would."""
        content = self.unchecked(name)
        if zlib.crc32(content) != self.sums.get(name):
            self.refuse(name)
        return content

    def unchecked(self, name: str) -> bytes:
        try:
            return self._importer.get_data(f"{self._path}/{name}")
        except (OSError, EOFError, ImportError, zlib.error):
            self.refuse(name)

    def refuse(self, name: str) -> NoReturn:
        start.fail(f"{self._path} is damaged ({name}): copy it anew", 1)


def abi() -> str:
    """What makes extension modules of the same version unfit. A debug build loads ordinary ones."""
    return str(getattr(sys, "abiflags", "")).replace("d", "")


def write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)


@contextmanager
def new_folder(root: str) -> Iterator[str]:
    """A folder to fill and then to move to its place; gone if that fails."""
    new = f"{root}/.new-{os.urandom(8).hex()}"
    os.mkdir(new)
    try:
        yield new
    finally:
        if os.path.exists(new):
            tidy.remove(new)


def put(new: str, place: str, archive: str) -> None:
    """Move a filled folder to its place. A broken one there is replaced; a whole one, made meanwhile, is kept."""
    if not start.boot():
        # A later start could not tell whether the machine went down meanwhile.
        os.sync()
    for _ in range(3):
        try:
            os.rename(new, place)
        except OSError:
            if not os.path.isdir(place):
                raise
            cached = os.path.exists(f"{new}/.lock")
            root = os.path.dirname(place) if cached else os.path.dirname(os.path.dirname(place))
            if start.ready(root, archive) if cached else start.whole(place):
                return
            set_aside(place, root)
        else:
            return
    raise OSError(f"{place} cannot be replaced")


def set_aside(place: str, root: str) -> None:
    """Out of the way, where it is removed as soon as no process runs from it."""
    with suppress(FileNotFoundError):
        os.rename(place, f"{root}/.old-{os.urandom(8).hex()}")


@contextmanager
def one_at_a_time(root: str) -> Iterator[None]:
    """Forty first starts at once need one unpacking. But none waits for ever for one that was stopped."""
    lock = os.open(f"{root}/.unpacking", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break  # a file system without locks: each unpacks for itself
        yield
    finally:
        os.close(lock)


def refuse_old_musl() -> None:
    version = musl_version()
    if version and version < MUSL_NEEDED:
        found, needed = (".".join(map(str, numbers)) for numbers in (version, MUSL_NEEDED))
        start.fail(f"this system's C library is musl {found}, and psycopg's libraries need {needed} or newer")


def musl_version() -> tuple[int, ...] | None:
    """Read out of the loader that this process runs by: musl has no call for it."""
    if not platform().startswith("musl"):
        return None
    import re

    with suppress(OSError):
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            loader = re.search(r"(/\S.*/(?:ld-musl-|libc\.musl-)[^/\n]*)$", maps.read(), re.MULTILINE)
        if loader:
            with open(loader[1], "rb") as file:
                found = re.search(rb"\0(1\.\d+\.\d+)(?:-git[^\0]*)?\0", file.read())
            if found:
                return tuple(int(number) for number in found[1].split(b"."))
    return None


def allow_ctypes(archive: str, folder: str) -> None:
    """psycopg is about to use the system's libpq: right only where there is nothing else."""
    if os.environ.get("PSYCOPG_IMPL") == "python":
        return
    whole = Archive(archive)
    if natives := whole.natives():
        try:
            __import__("psycopg_binary.pq")
        except ImportError as reason:
            note = ""
            if any(damaged(f"{folder}/{place}", whole.sums[name]) for name, place in natives.items()):
                with suppress(OSError):
                    set_aside(folder, os.path.dirname(folder))
                    note = "; the cache was damaged, and the next start makes it anew"
            start.fail(f"psycopg's binary implementation cannot be loaded: {reason}{note}", 1)
        return
    from psycopg.pq.misc import find_libpq_full_path

    if not find_libpq_full_path():
        start.fail(
            f"this file has no native libraries for {sys.implementation.cache_tag} on {platform()}, and the "
            "system has no libpq: install it (libpq5, libpq or postgresql-libs), or use CPython 3.10 to 3.15 on x86-64 "
            "or arm64"
        )


def damaged(path: str, checksum: int) -> bool:
    try:
        with open(path, "rb") as file:
            return zlib.crc32(file.read()) != checksum
    except FileNotFoundError:
        return True
