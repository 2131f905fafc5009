"""What every measurement is given: a server, a folder, environments, and a place for figures and counts."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks import peers
from benchmarks.tables import Table
from tests.conftest import KEY_VALUE
from tests.support.postgres import BIN, Postgres, free_port
from tests.support.programs import runnable
from tests.support.statements import SETTINGS, Traffic, watch

#: The reference where a peer of the same name and form is measured.
PUBLISHED = "dislock 0.1.0"
#: The role of whoever is measured: no superuser, who could use the connections that are kept for superusers.
ROLE = "cron"
YEARLY = "0 0 1 1 *"
#: How long a program may take to do what is asked of it.
PATIENCE = 120.0


@dataclass(frozen=True)
class Used:
    """What one run of a program took."""

    seconds: float
    processor: float
    code: int


def run(argv: Sequence[str], environment: Mapping[str, str]) -> Used:
    """Runs a program to its end, its output thrown away."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawnp(argv[0], list(argv), dict(environment), file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    took = time.perf_counter() - began
    return Used(took, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status))


class Bench:
    """One run of the benchmarks: the server of all measurements, and what they found."""

    def __init__(self, server: Postgres, folder: Path, *, quick: bool, rounds: int | None) -> None:
        self.server = server
        self.folder = folder
        self.quick = quick
        self._rounds = rounds
        self._names = itertools.count()
        self.tables: list[Table] = []
        self.broken: list[str] = []
        self.beyond: list[str] = []
        #: Programs that the one file finds its Python with.
        self.path = f"{folder}/bin:/usr/bin:/bin"
        (folder / "bin").mkdir()
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (folder / "bin" / version).symlink_to(Path(sys.base_prefix) / "bin" / version)

    def rounds(self, usual: int) -> int:
        return 1 if self.quick else self._rounds or usual

    def table(self, name: str, title: str, ratio_of: str = "", reference: str = "") -> Table:
        command = f"benchmarks/run --only {name}"
        table = Table(name, title, ratio_of, reference, command)
        self.tables.append(table)
        return table

    # Counts that the documents promise; only these make a run fail.

    def exactly(self, what: str, actual: int, promised: int) -> None:
        if actual != promised:
            self.broken.append(f"{what}: {actual}, and not {promised}")

    def at_most(self, what: str, actual: int, promised: int) -> None:
        if actual > promised:
            self.broken.append(f"{what}: {actual}, and not at most {promised}")

    def limit(self, what: str, value: float, most: float) -> None:
        """A figure with a limit, which makes a run fail where that was asked for."""
        if value > most:
            self.beyond.append(f"{what}: {value:.2f}, limit {most:g}")

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    # The product in its two forms, and the peers. Quick runs need neither the network nor an hour of building.

    @functools.cached_property
    def product(self) -> Path:
        """The folder of the product's programs, as pip installs them."""
        return Path(sys.executable).parent if self.quick else peers.product()

    @functools.cached_property
    def pyz(self) -> Path | None:
        if not peers.PYZ.is_file():
            if not self.quick:
                sys.exit("no dist/dislock.pyz: run build/pyz")
            return None
        return peers.PYZ

    def peer(self, name: str) -> Path | None:
        """The folder of a peer's programs; None in a quick run, which has no peers."""
        return None if self.quick else _peer(name)

    def wrappers(self) -> dict[str, str]:
        """The programs that are called dislock, by what a table calls them."""
        found = {"pip": str(self.product / "dislock")}
        if self.pyz:
            found["zipapp"] = str(self.pyz)
        if published := self.peer("published"):
            found[PUBLISHED] = str(published / "dislock")
        return found

    def environment(self, url: str, strategy: str = "schedule", **more: str) -> dict[str, str]:
        """For a wrapper, with a key of its own unless one is given."""
        return {
            "PATH": self.path,
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": f"{self.folder}/cache",
            "DATABASE_URL": url,
            "LOCK_STRATEGY": strategy,
            "LOCK_KEY": uuid.uuid4().hex,
            **({"CRON_SCHEDULE": YEARLY} if "schedule" in strategy else {}),
            **more,
        }

    # The server.

    def admin(self, database: str = "postgres", server: Postgres | None = None) -> psycopg.Connection[Any]:
        return psycopg.connect((server or self.server).url(database), autocommit=True)

    def database(self, server: Postgres | None = None, *, logged: bool = False) -> str:
        """A new database with the documented table: its connection string for the one who is measured."""
        server, name = server or self.server, f"bench_{next(self._names)}"
        with self.admin(server=server) as admin:
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone():
                admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            if logged:
                admin.execute(sql.SQL("ALTER DATABASE {} SET log_statement = 'all'").format(sql.Identifier(name)))
        with self.admin(name, server) as owner:
            owner.execute(KEY_VALUE.encode())
            owner.execute(sql.SQL("GRANT ALL ON key_value TO {}").format(sql.Identifier(ROLE)))
        return server.url(name, ROLE)

    @contextmanager
    def watched(self, url: str) -> Iterator[Traffic]:
        """What reaches a database that was made ``logged``."""
        with watch(self.server, name_of(url)) as traffic:
            yield traffic

    def connections(self, admin: psycopg.Connection[Any], url: str) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename = %s"
        row = admin.execute(query, [name_of(url), ROLE]).fetchone()
        assert row is not None
        return int(row[0])

    @contextmanager
    def redis(self) -> Iterator[str | None]:
        """A Redis server on a port of its own; None where the machine has none, and in a quick run."""
        program = shutil.which("redis-server")
        if self.quick or program is None:
            yield None
            return
        port = free_port()
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, cwd=self.folder)
        try:
            end = time.monotonic() + PATIENCE
            while subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False).returncode:
                if time.monotonic() > end:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


@functools.cache
def _peer(name: str) -> Path:
    return peers.programs(name)


@contextmanager
def opened(*, quick: bool, rounds: int | None, folder: Path) -> Iterator[Bench]:
    """A Bench with its server. Statements are logged in databases that ask for it alone."""
    settings = {**SETTINGS, "log_statement": "none", "max_connections": 100, "superuser_reserved_connections": 3}
    with ExitStack() as stack:
        server = stack.enter_context(Postgres(settings))
        yield Bench(server, folder, quick=quick, rounds=rounds)


def name_of(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


def program(name: str) -> str:
    """One of PostgreSQL's own programs."""
    return str(runnable(BIN) / name)


def machine() -> str:
    """Where the figures were measured, in one line."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    load = os.getloadavg()[0]
    postgres = subprocess.run([program("postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    linux = ".".join(platform.release().split(".")[:2])
    return (
        f"{os.cpu_count()} x {cpu}, Linux {linux}, CPython {platform.python_version()}, "
        f"{' '.join(postgres.split()[::2])}, load average {load:.1f} at the start"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
