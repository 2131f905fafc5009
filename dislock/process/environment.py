"""The environment that a command gets: this program's own, or the one that this process was started with."""

from __future__ import annotations

import os
from pathlib import Path

#: What the libraries of this program would read, and a host sets for the command: another psycopg, another place of the
#: zones, another zone of the session. The last four are those that libpq sends to the server beside the connection
#: string; the zone in which a schedule is read must be the same on all hosts.
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
    """The environment as this program has it now, for a command of the library."""
    return dict(os.environb)


def original_environment() -> dict[bytes, bytes]:
    """The environment as this process got it, for the command.

    In a C locale Python changes ``LC_CTYPE`` at its start; Linux keeps the original in ``/proc/self/environ``.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        block = b""
    pairs = [entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry]
    # An entry without a name, as Wine leaves it, cannot be handed on (os.execve).
    return {name: value for name, _, value in pairs if name} or dict(os.environb)


def leave_to_the_command() -> None:
    """Takes out of this process's environment what is for the command alone; before any library is loaded."""
    for name in FOR_THE_COMMAND:
        os.environ.pop(name, None)
