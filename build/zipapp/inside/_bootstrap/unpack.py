"""What a first start needs: unpacks this host's part of the archive, all of it or nothing.

Later starts use this only for the parts that stay in the archive until they are imported.
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
PATIENCE = 20.0  # s that a start waits for another start that is unpacking, before it unpacks itself


@contextmanager
def private() -> Iterator[None]:
    """Whatever is made in the block, its owner has all permissions and nobody else has any, whatever the umask."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@private()
def into(root: str, archive: str) -> str:
    """Makes the cache in `root`. OSError and UnsafeError say why that is impossible."""
    os.makedirs(root, exist_ok=True)
    # Checked only now, because somebody else may have made it.
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
    """A temporary folder, removed when this process ends or becomes the command. Exits if there can be none."""
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
    """The path entry of a part that stays in the archive until it is imported. Exits if there is no room for it."""
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
    """Adds an unpacked part to the folder."""
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
    """Makes a later start unpack the whole cache again if the machine crashes before the cache is on disk."""
    lock = os.open(f"{folder}/.lock", os.O_WRONLY | os.O_CLOEXEC)
    os.write(lock, start.boot())
    os.fsync(lock)
    os.close(lock)


def temporary_places() -> Iterable[str]:
    places = dict.fromkeys((os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp", "/dev/shm"))
    return (place for place in places if place.startswith("/"))


def temporary_folder(base: str) -> tuple[str, int]:
    """A temporary folder, and the descriptor that keeps it. OSError and UnsafeError: it cannot be in `base`."""
    made = f"{base}/dislock-{os.urandom(8).hex()}"
    # First the process that removes it: otherwise a folder would be left behind if this process ended in between.
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
    """Unpacks what this Python needs into `folder`, which will be moved to `place`. Holds its lock until the end."""
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
    """Writes the files of a folder, and their sizes, with which a later start checks that they still exist."""
    sizes = {}
    for name, content in contents:
        write(f"{folder}/{name}", content)
        sizes[name] = len(content)
    write(f"{folder}/.files", sealed(marshal.dumps(sizes)))


class Archive:
    """Reads the file by the directory that the import system has read already; zipfile would cost a start 30 ms."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._importer = zipimporter(path)
        # The first line is the checksum of the others.
        own, _, rest = self.unchecked("_bootstrap/sums").partition(b"\n")
        if own != b"%d" % zlib.crc32(rest):
            self.refuse("_bootstrap/sums")
        lines = rest.decode().splitlines()
        self.sums = {name: int(number) for number, _, name in (line.partition(" ") for line in lines)}

    def packages(self) -> dict[str, str]:
        """The members that every Python needs, with their places in the cache."""
        return {name: name for name in self.sums if name.startswith("site-packages/")}

    def natives(self) -> dict[str, str]:
        """The members for this Python on this platform; empty if the file has none."""
        libraries = f"natives/{platform()}/psycopg_binary.libs/"
        extensions = f"natives/{platform()}/{sys.implementation.cache_tag}{abi()}/"
        if not any(name.startswith(extensions) for name in self.sums):
            return {}
        moves = {libraries: "site-packages/psycopg_binary.libs/", extensions: "site-packages/psycopg_binary/"}
        return {
            name: new + name[len(old) :] for name in self.sums for old, new in moves.items() if name.startswith(old)
        }

    def read(self, name: str) -> bytes:
        """A member's content, checked as zipfile does."""
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
    """The ABI flags that extension modules must match. A debug build also loads ordinary modules."""
    return str(getattr(sys, "abiflags", "")).replace("d", "")


def write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(content)


@contextmanager
def new_folder(root: str) -> Iterator[str]:
    """A folder to fill and then to move to its place; it is removed if that fails."""
    new = f"{root}/.new-{os.urandom(8).hex()}"
    os.mkdir(new)
    try:
        yield new
    finally:
        if os.path.exists(new):
            tidy.remove(new)


def put(new: str, place: str, archive: str) -> None:
    """Moves a filled folder to its place. Replaces a broken one there; keeps a whole one that was made meanwhile."""
    if not start.boot():
        # Without a boot id a later start could not notice a crash.
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
    """Moves it away. It is removed when no process runs from it any more."""
    with suppress(FileNotFoundError):
        os.rename(place, f"{root}/.old-{os.urandom(8).hex()}")


@contextmanager
def one_at_a_time(root: str) -> Iterator[None]:
    """Lets only one of many simultaneous first starts unpack. But none waits for ever for one that was stopped."""
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
                break  # a file system without locks: each start unpacks itself
        yield
    finally:
        os.close(lock)


def refuse_old_musl() -> None:
    version = musl_version()
    if version and version < MUSL_NEEDED:
        found, needed = (".".join(map(str, numbers)) for numbers in (version, MUSL_NEEDED))
        start.fail(f"this system's C library is musl {found}, and psycopg's libraries need {needed} or newer")


def musl_version() -> tuple[int, ...] | None:
    """The version of musl, read from the loader of this process, because musl has no function for it."""
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
    """Called before psycopg uses the system's libpq, which is right only if the file has no other one."""
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
