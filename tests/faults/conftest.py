"""Wrappers on a server that a test may break, and a look at the lock table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from tests.conftest import KEY_VALUE
from tests.faults.wrapper import Run
from tests.support.postgres import Postgres

#: A lease that is renewed often, and long enough for a busy machine; the grace is a third of it at most.
LEASE = {
    "LOCK_KEY": "job",
    "LOCK_STRATEGY": "lease",
    "RUN_LOCK_TTL_SECONDS": 6,
    "LOCK_LEASE_INTERVAL": 0.3,
    "LOCK_KILL_GRACE_SECONDS": 1,
}
#: A slot that no test outlives.
SLOT = {"LOCK_KEY": "job", "LOCK_STRATEGY": "schedule", "CRON_SCHEDULE": "0 0 1 1 *", "CRON_TZ": "UTC"}
BOTH = {**SLOT, **LEASE, "LOCK_STRATEGY": "schedule,lease"}


class Start(Protocol):
    def __call__(self, url: str, *settings: dict[str, Any], **more: Any) -> Run: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts wrappers, and leaves none of them behind."""
    with ExitStack() as runs:

        def begin(url: str, *settings: dict[str, Any], **more: Any) -> Run:
            number = len(list(tmp_path.glob("run-*")))
            merged = {name: value for each in settings for name, value in each.items()}
            return runs.enter_context(Run(tmp_path / f"run-{number}", url, merged, **more))

        yield begin


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server of the test's own, with the lock table and an ordinary role ``app`` that may use it."""
    with Postgres({"max_connections": 20, "superuser_reserved_connections": 5}) as own:
        furnish(own)
        yield own


def furnish(server: Postgres) -> None:
    """Makes the lock table and the role ``app``."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(KEY_VALUE)
        connection.execute("CREATE ROLE app LOGIN")
        connection.execute("GRANT SELECT, INSERT, UPDATE ON key_value TO app")


class Table:
    """What the lock table says."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """One statement on a connection of its own: the server may have been restarted since the last one."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def live(self) -> dict[str, str]:
        """Whom each row names that has not ended, by the kind of its key."""
        rows = self.ask("SELECT split_part(key, ':', 2), value FROM key_value WHERE expire_at > clock_timestamp()")
        return dict(rows)

    def ends(self, kind: str = "lease") -> Any:
        """When the row of that kind ends."""
        ((end,),) = self.ask("SELECT expire_at FROM key_value WHERE split_part(key, ':', 2) = %s", kind)
        return end

    def renewed(self, since: Any) -> bool:
        """Whether the lease ends later than that."""
        return bool(self.ask("SELECT 1 FROM key_value WHERE key LIKE '%%:lease:%%' AND expire_at > %s", since))

    def backends(self, role: str = "%") -> list[int]:
        """The server processes of our connections."""
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'dislock %%' AND usename LIKE %s ORDER BY backend_start"
        )
        return [pid for (pid,) in self.ask(query, role)]

    def waiting(self, event: str) -> bool:
        """Whether one of our statements waits for that (a ``wait_event`` or its type)."""
        query = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'dislock %%' AND state = 'active' AND %s IN (wait_event, wait_event_type)"
        )
        return bool(self.ask(query, event))


@pytest.fixture
def table(database_url: str) -> Table:
    return Table(database_url)


@pytest.fixture
def own_table(server: Postgres) -> Table:
    return Table(server.url())
