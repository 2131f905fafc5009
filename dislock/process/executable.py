"""Finds the program of a command and runs it, or explains why it could not be run."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dislock.process.outcomes import NotStarted

Environment = Mapping[bytes, bytes]

SHELL = "/bin/sh"


def execute(command: Sequence[str], environment: Environment | None) -> NoReturn:
    """Replaces this process by ``command``, found by the PATH of ``environment``. Raises ``NotStarted``."""
    env: Environment = os.environb if environment is None else environment
    try:
        if not command[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            os.execvpe(command[0], list(command), env)  # noqa: S606 - the purpose is to run what the user names
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve(SHELL, as_script(command, environment), env)  # noqa: S606 - the same command, by its shell
    except OSError as error:
        raise not_started(command, environment, error) from None


def as_script(command: Sequence[str], environment: Environment | None) -> list[str]:
    """The command for a file that the kernel cannot execute (ENOEXEC), if it is a script without a ``#!`` line.

    By POSIX, ``execvp`` and the shell run such a file with ``sh``. So it works in a crontab, and it must still work
    with this wrapper in front. A program for another machine also causes ENOEXEC: like shells, take a NUL in the first
    line as the sign of one.
    """
    path = _find(command[0], environment)
    if path is None:
        raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC))
    with Path(path).open("rb") as file:
        if b"\0" in file.read(128).partition(b"\n")[0]:
            raise OSError(errno.ENOEXEC, "it is a program for another kind of machine, or damaged")
    return [SHELL, path, *command[1:]]


def not_started(command: Sequence[str], environment: Environment | None, error: OSError) -> NotStarted:
    """The result, as a shell would give it, for the ``error`` of an attempt to run ``command``."""
    # The arguments may contain a password, so only the name is shown.
    name, reason = command[0], error.strerror or str(error)
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return NotStarted(126, f"cannot run {name!r}: {reason}")
    if name and _find(name, environment) is not None:
        return NotStarted(126, f"cannot run {name!r}: the interpreter or the loader that it names does not exist")
    if "/" in name:
        return NotStarted(127, f"cannot run {name!r}: {reason}")
    return NotStarted(127, f"cannot run {name!r}: no such command in PATH")


def _find(name: str, environment: Environment | None) -> str | None:
    # The type stubs know only text, but os.get_exec_path also takes a mapping of bytes.
    places = [""] if "/" in name else os.get_exec_path(environment)  # type: ignore[arg-type]
    for place in places:
        path = Path(place, name)
        if path.is_file() and os.access(path, os.X_OK):
            return name if "/" in name else str(path)
    return None
