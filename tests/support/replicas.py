"""A primary and a standby that follows it by streaming replication, for tests of a failover."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psycopg

from tests.support.postgres import Postgres
from tests.support.wait import until


class Standby(Postgres):
    """A copy of a running primary that follows it; read-only until it is promoted.

    ``port`` leads to the primary by another way than its own port.
    """

    def __init__(self, primary: Postgres, *, port: int | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._port = port or primary.port
        super().__init__({"hot_standby": "on"}, environ=environ)

    def fill(self, base: Path | None) -> None:
        del base
        source = f"host=127.0.0.1 port={self._port} user=postgres"
        self.program("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast", "--no-sync")

    def promote(self) -> None:
        """Makes it a primary; it takes writes when this returns."""
        self.program("pg_ctl", "-D", str(self.data), "-w", "-s", "promote")


class Pair:
    """Both servers, running; ``primary.stop()`` and ``standby.promote()`` are a failover.

    Replication is asynchronous, as it is by default: what the primary confirmed in its last moments may be missing on
    the standby, unless ``synchronous`` says that the primary waits for it.
    """

    def __init__(self, *, synchronous: bool = False) -> None:
        self._synchronous = synchronous
        self.primary = Postgres({"wal_level": "replica", "max_wal_senders": 4, "wal_keep_size": "64MB"})
        self._standby: Standby | None = None

    @property
    def standby(self) -> Standby:
        assert self._standby is not None, "use it as a context manager"
        return self._standby

    def url(self, database: str = "postgres", target: str = "read-write") -> str:
        """Names both hosts; libpq takes the one that fits ``target_session_attrs``."""
        hosts, ports = "127.0.0.1,127.0.0.1", f"{self.primary.port},{self.standby.port}"
        return f"host={hosts} port={ports} user=postgres dbname={database} target_session_attrs={target}"

    def catch_up(self) -> None:
        """Waits until the standby has replayed all that the primary has written."""
        with psycopg.connect(self.primary.url(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        with psycopg.connect(self.standby.url(), autocommit=True) as connection:

            def replayed() -> bool:
                query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
                return connection.execute(query, [row[0]]).fetchone() == (True,)

            until(replayed, what=f"the standby's replay of {row[0]}")

    def __enter__(self) -> Pair:
        self.primary.__enter__()
        try:
            self._standby = Standby(self.primary)
            self._standby.__enter__()
            if self._synchronous:
                self.primary.configure({"synchronous_standby_names": "*", "synchronous_commit": "remote_apply"})
                self.primary.reload()
        except BaseException:
            self.primary.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.standby.__exit__(kind, error, trace)
        finally:
            self.primary.__exit__(kind, error, trace)
