"""Which folder is the cache, and whether it is safe to load anything from it.

Every start compiles this, so it is short. The rest of the program is loaded, compiled, from the cache.
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
# These belong to root on every system (Filesystem Hierarchy Standard).
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
    """The possible places of a cache, the best first, and whether the user named it."""
    found: list[tuple[str, bool]] = []
    if named := os.environ.get("DISLOCK_CACHE"):
        found.append((named, True))
    else:
        # By the XDG specification a relative path is ignored.
        if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
            found.append((xdg + "/dislock", False))
        if os.geteuid() == 0:
            # Not HOME: under sudo it can be another user's.
            found.append(("/var/cache/dislock", False))
        else:
            home = os.environ.get("HOME", "") or passwd_home()
            if home.startswith("/") and home != "/":
                found.append((home + "/.cache/dislock", False))
    return found


def sealed(content: bytes) -> bytes:
    """The content and its hash, which reveals damage, and bytecode of another pre-release of the same Python."""
    return content + _imp.source_hash(int.from_bytes(MAGIC_NUMBER, "little"), content)


def opened(content: bytes) -> bytes:
    """The content that was sealed. OSError: it was changed."""
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
    """The folder's real path, if only its owner and root can change its content or replace it. Else UnsafeError.

    FileNotFoundError: it does not exist, and the existing part of its path is safe.
    """
    if not folder.startswith("/"):
        raise UnsafeError(f"{folder} must be an absolute path")
    place = "/"
    # From the top: a folder that was checked keeps others from replacing the next one.
    for name in os.path.realpath(folder).split("/")[1:]:
        refuse_others(place, above=True)
        place = os.path.join(place, name)
    refuse_others(place)
    return place


def refuse_others(place: str, *, above: bool = False) -> None:
    """UnsafeError: others can change this folder's content, or replace the folder. Only those above may be sticky."""
    found = os.lstat(place)
    # In a user namespace without the host's root, root's folders show the same account as those of everybody else
    # outside of it, so their names decide. And the owner of / could replace the interpreter anyway.
    if found.st_uid not in (0, os.geteuid()) and not (
        above and place in SYSTEM and found.st_uid == os.lstat("/").st_uid
    ):
        raise UnsafeError(f"{place} belongs to another user (uid {found.st_uid})")
    # In a sticky folder such as /tmp nobody can rename the files of others.
    others = found.st_mode & 0o022
    if others == 0o020 and alone_in(found.st_gid, found.st_uid):
        return
    if others and not (above and found.st_mode & stat.S_ISVTX):
        raise UnsafeError(f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")


def alone_in(group: int, owner: int) -> bool:
    """Whether it is this user's private group, which on several distributions can write to the user's files."""
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
    """start.py as a first start compiled it. None: it is missing or unsafe, and start.py reports or repairs that."""
    try:
        for root, _ in roots()[:1]:
            folder = f"{check(root)}/{key()}"
            refuse_others(folder)
            # While .lock is not empty, the cache may not be on disk yet, and may have been made before a crash.
            if os.stat(f"{folder}/.lock").st_size:
                return None
            with open(f"{folder}/start", "rb") as file:
                code: CodeType = marshal.loads(opened(file.read()))  # noqa: S302 - as safe as the bytecode beside it
                return code
    except (OSError, UnsafeError):
        pass
    return None
