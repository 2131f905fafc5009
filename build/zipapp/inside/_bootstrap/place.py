"""Which folder is the cache, and whether it is safe to load anything from it.

Every start compiles this, so it is short. The rest of the program is then loaded from the cache, compiled.
"""

from __future__ import annotations

import _imp
import marshal
import os
import stat
import sys
from _frozen_importlib_external import MAGIC_NUMBER  # importlib.util has it too, and costs an import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

BUILD = "@BUILD@"
# Root's on every system (the Filesystem Hierarchy Standard).
SYSTEM = ("/", "/dev", "/dev/shm", "/home", "/mnt", "/opt", "/run", "/srv", "/tmp", "/var", "/var/cache", "/var/tmp")


class UnsafeError(Exception):
    """Others could put code into this cache folder."""


def platform() -> str:
    """The C library and machine that extension modules must be made for."""
    try:
        libc = "glibc" if os.confstr("CS_GNU_LIBC_VERSION") else "other"
    except (ValueError, OSError):
        libc = "musl" if sys.platform == "linux" else "other"
    return f"{libc}-{os.uname().machine}{'' if sys.maxsize > 1 << 32 else '-32'}"


def key() -> str:
    """The name of this build's cache folder for this Python: extension modules fit one version, ABI and C library."""
    return f"{BUILD}-{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}-{platform()}"


def roots() -> list[tuple[str, bool]]:
    """Where a cache may lie, the best first, and whether the user named it."""
    found: list[tuple[str, bool]] = []
    if named := os.environ.get("DISLOCK_CACHE"):
        found.append((named, True))
    else:
        # The XDG specification says to ignore a relative path.
        if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
            found.append((xdg + "/dislock", False))
        if os.geteuid() == 0:
            # Whatever HOME says: under sudo it can be another user's.
            found.append(("/var/cache/dislock", False))
        else:
            home = os.environ.get("HOME", "") or passwd_home()
            if home.startswith("/") and home != "/":
                found.append((home + "/.cache/dislock", False))
    return found


def sealed(content: bytes) -> bytes:
    """With a hash at its end, which tells damage, and the bytecode of another pre-release of the same Python."""
    return content + _imp.source_hash(int.from_bytes(MAGIC_NUMBER, "little"), content)


def opened(content: bytes) -> bytes:
    """What was sealed. OSError: it is not as it was written."""
    if sealed(content[:-8]) != content:
        raise OSError("damaged")
    return content[:-8]


def passwd_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def check(folder: str) -> str:
    """The folder's real path, if nobody but its owner and root can change what is in it or put another in its place.

    FileNotFoundError: it is not there, and what there is of its path is safe.
    """
    if not folder.startswith("/"):
        raise UnsafeError(f"{folder} must be an absolute path")
    place = "/"
    # From the top: what has been looked at keeps others from exchanging what is looked at next.
    for name in os.path.realpath(folder).split("/")[1:]:
        refuse_others(place, above=True)
        place = os.path.join(place, name)
    refuse_others(place)
    return place


def refuse_others(place: str, *, above: bool = False) -> None:
    """UnsafeError: somebody else can change what is in this folder, or exchange it. The cache's own must be private."""
    found = os.lstat(place)
    # In a user namespace without the host's root, its folders show as the same account's as those of all others
    # outside of it, so it is their places that tell. Whoever owns / can exchange the interpreter, too.
    if found.st_uid not in (0, os.geteuid()) and not (
        above and place in SYSTEM and found.st_uid == os.lstat("/").st_uid
    ):
        raise UnsafeError(f"{place} belongs to another user (uid {found.st_uid})")
    # Nobody can rename what is not theirs in a sticky folder such as /tmp.
    others = found.st_mode & 0o022
    if others == 0o020 and alone_in(found.st_gid, found.st_uid):
        return
    if others and not (above and found.st_mode & stat.S_ISVTX):
        raise UnsafeError(f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")


def alone_in(group: int, owner: int) -> bool:
    """Whether it is this user's private group, which several distributions let write to what the user makes."""
    if owner != os.geteuid() or group != os.getgid():
        return False
    import grp
    import pwd

    try:
        user, entry = pwd.getpwuid(owner), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}


def compiled() -> CodeType | None:
    """start.py as a first start compiled it. None: not there or not safe, and start.py says or mends what is wrong."""
    try:
        for root, _ in roots()[:1]:
            folder = f"{check(root)}/{key()}"
            refuse_others(folder)
            # While .lock is not empty, the cache has perhaps not reached the disk, and may be that of another boot.
            if os.stat(f"{folder}/.lock").st_size:
                return None
            with open(f"{folder}/start", "rb") as file:
                code: CodeType = marshal.loads(opened(file.read()))  # noqa: S302 - as safe as the bytecode beside it
                return code
    except (OSError, UnsafeError):
        pass
    return None
