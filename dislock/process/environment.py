"""The environment that a command gets: this program's current one, or the one that this process was started with."""

from __future__ import annotations

import os
from pathlib import Path

#: Variables that a host sets for the command, but that libraries of this program would read: another implementation of
#: psycopg, another folder of time zones, another zone of the session. libpq sends the last four to the server; and the
#: zone in which a schedule is read must be the same on all hosts.
FOR_THE_COMMAND = (
    "PSYCOPG_IMPL",
    "PSYCOPG_WAIT_FUNC",
    "PYTHONTZPATH",
    "PGTZ",
    "PGOPTIONS",
    "PGDATESTYLE",
    "PGGEQO",
)


def current_environment() -> dict[bytes, bytes]:
    """This program's current environment, for a command of the library."""
    return dict(os.environb)


def original_environment() -> dict[bytes, bytes]:
    """The environment as this process got it, for the command.

    In a C locale Python changes ``LC_CTYPE`` (PEP 538). Linux keeps the original in ``/proc/self/environ``.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        block = b""
    pairs = [entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry]
    # os.execve refuses an entry without a name, which Wine can leave.
    return {name: value for name, _, value in pairs if name} or dict(os.environb)


def leave_to_the_command() -> None:
    """Removes from this process's environment what is only for the command. Call it before any library is loaded."""
    for name in FOR_THE_COMMAND:
        os.environ.pop(name, None)
