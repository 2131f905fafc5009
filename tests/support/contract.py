"""A command under test, whatever it is, with a database; here as it is installed.

``tests/contract`` runs the same on the other artifacts, with a fixture ``bare`` of its own.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

#: An expression whose slot does not end while a test runs.
YEARLY = "0 0 1 1 *"
SECONDS = 60.0


@dataclass(frozen=True)
class Row:
    """One row of the lock table; ``live``: by the database's clock it has not ended yet."""

    key: str
    value: str
    expires: datetime
    live: bool


@dataclass
class Ran:
    """How one run ended."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, str]:
        """The ``NAME=value`` lines of the output."""
        return dict(line.split("=", 1) for line in self.out.splitlines() if "=" in line)


@dataclass
class Dislock:
    """The command under test, with an environment of its own and one database."""

    command: Sequence[str]
    url: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, *argv: str | bytes, environ: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start it with these arguments, and with these variables beside its own (an empty one: without it)."""
        everything = {**self.environment, **(environ or {})}
        process = subprocess.Popen(
            [*self.command, *argv],
            env=everything,
            cwd=self.folder,
            # Unbuffered: what was read ahead here would be lost to communicate().
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._running.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Ran:
        """Wait for its end."""
        out, err = process.communicate(stdin, timeout=SECONDS)
        return Ran(process.returncode, out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape"))

    def run(self, *argv: str | bytes, stdin: bytes | None = None, **environ: str) -> Ran:
        """Start it and wait for its end."""
        pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        return self.finish(self.start(*argv, environ=environ, stdin=pipe), stdin)

    def line(self, process: subprocess.Popen[bytes], *, error: bool = False) -> str:
        """The next line of its output, or of standard error: by this it tells how far it is."""
        stream = process.stderr if error else process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], SECONDS)
        assert ready, f"not a line within {SECONDS:g} s"
        return stream.readline().decode().rstrip("\n")

    def rows(self, table: str = "key_value") -> dict[str, Row]:
        """The lock table, by the key's kind and name without what they all begin with."""
        found = self.sql(f"SELECT key, value, expire_at, expire_at > clock_timestamp() FROM {table}")
        return {str(row[0]).removeprefix("cronjob-lock:"): Row(*row) for row in found}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Carry out statements; the rows of the last one, if it returns any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Dislock]:
    """The command under test without a database, in an environment with nothing but PATH."""
    command = [sys.executable, "-m", "dislock"]
    with closing(Dislock(command, "", tmp_path, {"PATH": os.environ["PATH"]})) as tested:
        yield tested


@pytest.fixture
def dislock(bare: Dislock, database_url: str) -> Dislock:
    """The command under test with a database and the settings of a schedule lock; its variable is DATABASE_URL."""
    bare.url = database_url
    bare.environment |= {"DATABASE_URL": database_url, "LOCK_KEY": "job", "CRON_SCHEDULE": YEARLY, "CRON_TZ": "UTC"}
    return bare


@pytest.fixture
def lease(dislock: Dislock) -> Dislock:
    """The same for a lease."""
    del dislock.environment["CRON_SCHEDULE"]
    dislock.environment["LOCK_STRATEGY"] = "lease"
    return dislock
