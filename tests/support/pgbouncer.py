"""A PgBouncer of one's own in front of a server, on a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.need import need_program
from tests.support.programs import account

_PATIENCE = 10.0


class PgBouncer:
    """Started on entry, ended on exit. Skips the test where the program is missing; with CI=true that fails it.

    ``server_url`` names the server and the role in which every client reaches it; ``pool_mode`` is ``session``,
    ``transaction`` or ``statement``; ``settings`` are further lines of its ``[pgbouncer]`` section. It has every
    database, or the one named, and lets everybody in, or only the ``users`` with their passwords.
    """

    def __init__(
        self,
        server_url: str,
        pool_mode: str = "transaction",
        settings: Mapping[str, object] | None = None,
        *,
        database: str = "*",
        users: Mapping[str, str] | None = None,
    ) -> None:
        self._program = need_program("pgbouncer")
        self._server = conninfo_to_dict(server_url)
        self._settings = {"pool_mode": pool_mode, **(settings or {})}
        self._database, self._users = database, users
        self._folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def url(self, database_url: str) -> str:
        """The same connection string, by way of the pooler."""
        return make_conninfo(database_url, host="127.0.0.1", port=self.port, sslmode="disable")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> PgBouncer:
        self.port = _free_port()
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(self._configuration())
        (self._folder / "users").write_text(
            "".join(f'"{name}" "{word}"\n' for name, word in (self._users or {}).items())
        )
        user = account()
        if user is not None:
            # PgBouncer refuses to run as root.
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            os.chown(configuration, user.pw_uid, user.pw_gid)
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, str(configuration)],
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else (),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._wait_until_it_listens(self._process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            # SIGINT would wait for the clients to leave.
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _configuration(self) -> str:
        server = {name: self._server[name] for name in ("host", "port", "user", "password") if name in self._server}
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            # No user file: whoever comes is let in, as the role of the line under [databases].
            "auth_type": "any" if self._users is None else "scram-sha-256",
            "auth_file": self._folder / "users",
            "logfile": self._folder / "log",
            "ignore_startup_parameters": "extra_float_digits,options",
            **self._settings,
        }
        lines = ["[databases]", f"{self._database} = " + make_conninfo("", **server), "[pgbouncer]"]
        return "\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items()), ""])

    def _wait_until_it_listens(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)
        output = (self._folder / "output").read_text(errors="replace")
        self.__exit__(None, None, None)
        raise RuntimeError(f"pgbouncer did not start: {output}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
