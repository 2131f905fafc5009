"""A temporary PostgreSQL: the embedded wheel's programs, on a free port of 127.0.0.1 and on a socket."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import psutil

from build.common import programs as installed
from build.common.programs import BIN

#: The longest path of a socket's folder in bytes: the limit of macOS, the lowest one, minus the socket's name.
SOCKET_FOLDER_BYTES = 103 - len("/.s.PGSQL.65535.lock")
#: Seconds that a stop may take before the server is killed.
STOP_SECONDS = 15
#: Stops the server and removes its folder when its standard input ends, which happens when the tests' process ends.
KEEPER = """
read -r _
[ ! -e "$1/data/postmaster.pid" ] || "$2" -D "$1/data" -w -s -m immediate stop
rm -rf "$1" "$3"
"""


def free_port() -> int:
    """A free port that no outgoing connection gets, so that it is still free when a server restarts."""
    for _ in range(200):
        port = random.randrange(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 15000 and 32000 on 127.0.0.1")


class Postgres:
    """One server: started on entry, stopped and removed on exit. Works for root too.

    ``programs``: the folder of PostgreSQL's programs, by default the embedded ones. ``base``: the data folder to copy,
    by default an empty one. ``environ`` is added to the environment of its programs.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        base: Path | None = None,
        programs: Path = BIN,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._programs = installed.runnable(programs)
        self._environ = environ or {}
        self._account = installed.account()
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._sockets = self._folder
        if len(os.fsencode(self._folder)) > SOCKET_FOLDER_BYTES:
            self._sockets = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        for folder in {self._folder, self._sockets}:
            self.give(folder)
            folder.chmod(0o755)
        self.data = self._folder / "data"
        self.port = free_port()
        self._started = False
        self._keeper = self._keep()
        self.fill(base)
        self.configure(
            {
                "listen_addresses": "127.0.0.1",
                "port": self.port,
                "unix_socket_directories": self._sockets,
                "fsync": "off",
                "timezone": "UTC",
                "log_timezone": "UTC",
                **(settings or {}),
            }
        )

    def fill(self, base: Path | None) -> None:
        """Makes the data folder."""
        self.program("cp", "-a", str(base or _template(self._programs)), str(self.data))

    def _keep(self) -> subprocess.Popen[bytes]:
        pg_ctl = self._programs / "pg_ctl"
        return subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "keeper", str(self._folder), str(pg_ctl), str(self._sockets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # Ctrl-C must reach only the tests, which then end.
            start_new_session=True,
            **installed.identity(),
        )

    def give(self, path: Path) -> None:
        """Gives a file or folder to the server's account."""
        if self._account:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Appends to postgresql.conf. Takes effect at the next start or reload."""
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)

    def program(self, name: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs as the server's user and returns what it printed."""
        done = _run(self._programs, name, *arguments, folder=self._folder, environ=self._environ)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout}")
        return done.stdout

    def start(self) -> None:
        for chance in reversed(range(5)):
            try:
                # A log file, because the server would keep a pipe open.
                self.program("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.log_path), "-s", "start")
                break
            except RuntimeError as error:
                # Another program took the port since it was found free. After a first start the number must not change.
                if self._started or not chance or "Address already in use" not in self.log:
                    raise RuntimeError(f"{error}\n{self.log}") from None
                self.port = free_port()
                self.configure({"port": self.port})
                self.log_path.unlink()
        self._started = True

    def stop(self, mode: str = "immediate") -> None:
        if (self.data / "postmaster.pid").exists():
            self.program("pg_ctl", "-D", str(self.data), "-w", "-t", str(STOP_SECONDS), "-s", "-m", mode, "stop")

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Makes the server read its settings again, a moment later."""
        self.program("pg_ctl", "-D", str(self.data), "-s", "reload")

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def processes(self) -> list[psutil.Process]:
        """The postmaster and all processes that it started."""
        try:
            postmaster = psutil.Process(self.pid)
            return [postmaster, *postmaster.children(recursive=True)]
        except (OSError, ValueError, psutil.NoSuchProcess):
            return []

    @property
    def log_path(self) -> Path:
        return self._folder / "log"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def socket_folder(self) -> Path:
        return self._sockets

    def url(self, database: str = "postgres", user: str = "postgres", query: str = "") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{'?' + query if query else ''}"

    def __enter__(self) -> Postgres:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = self.processes()
        for process in processes:
            # A stopped process does not react to a request to end.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        try:
            self.stop()
        except (RuntimeError, subprocess.TimeoutExpired):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._remove()

    def _remove(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        for folder in {self._folder, self._sockets}:
            shutil.rmtree(folder, ignore_errors=True)


def _run(
    programs: Path, name: str, *arguments: str, folder: Path, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    path = programs / name
    # libpq's variables would lead psql and pg_ctl to another server. Messages are compared, so they are in English.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.run(
        [str(path) if path.exists() else name, *arguments],
        cwd=folder,
        env={**inherited, "LC_ALL": "C", "HOME": str(folder), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STOP_SECONDS * 4,
        check=False,
        **installed.identity(),
    )


@functools.cache
def _template(programs: Path) -> Path:
    """A data folder to copy, which is a second faster than initdb."""
    folder = installed.scratch("pg-template-")
    account = installed.account()
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid)
    data = folder / "data"
    options = ("-U", "postgres", "-E", "utf8", "--no-locale", "--auth=trust", "--no-sync")
    done = _run(programs, "initdb", "-D", str(data), *options, folder=folder)
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout}")
    return data
