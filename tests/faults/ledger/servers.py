"""A primary, a standby that takes its place again and again, and a reserve that then follows it."""

from __future__ import annotations

import contextlib

import psycopg

from tests.conftest import KEY_VALUE
from tests.faults.ledger.record import Failover
from tests.support import clock
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.replicas import Standby
from tests.support.wait import until

SETTINGS = {
    "max_connections": 30,
    "superuser_reserved_connections": 4,
    "wal_level": "replica",
    "max_wal_senders": 4,
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "200ms",
    # The name that a standby gives itself. With "*" a base backup of the primary would count as one.
    "cluster_name": "standby",
}
#: Sessions of the troubles' own wait for no standby.
ALONE = "options=-c%20synchronous_commit%3Dlocal"
#: What the row of a key says, and the clock by which it says so, in microseconds.
LOOK = """
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, held.value,
           (extract(epoch FROM held.expire_at) * 1000000)::bigint
    FROM (SELECT) AS one LEFT JOIN key_value AS held ON held.key = %s"""


class Servers:
    """All three. ``synchronous``: the primary confirms nothing that the standby does not have.

    The reserve follows the standby, so that one which was just promoted has a standby at once.
    """

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        #: Theirs, which can be set where there is libfaketime.
        self.clock = clock.Settable() if clock.library() else None
        self._environ = self.clock.environment if self.clock else {}
        names = "standby" if synchronous else ""
        self.primary = Postgres({**SETTINGS, "synchronous_standby_names": names}, environ=self._environ)
        self._standbys: list[Standby] = []
        #: The networks before the first and the second standby.
        self._links = [Proxy("127.0.0.1", self.primary.port) for _ in range(2)]

    def begin(self) -> None:
        """Starts them, with the lock table and the role ``app``, whose settings would undo each promise."""
        for link in self._links:
            link.__enter__()
        self.primary.start()
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("ALTER ROLE app SET synchronous_commit = off")
            connection.execute("GRANT SELECT, INSERT, UPDATE ON key_value TO app")
        self._follow()
        self.complete()

    def end(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in (self.primary, *self._standbys):
                stack.push(server)
            for link in self._links:
                stack.push(link)

    def url(self) -> str:
        """The primary's, for the troubles themselves."""
        return self.primary.url(query=ALONE)

    def lag(self) -> None:
        """From now on the standby gets nothing."""
        self._links[0].wedge()

    def catch_up(self) -> None:
        self._links[0].resume()

    def promote(self) -> Postgres:
        """Makes the standby the primary; the answer is the old one, which is stopped or to be stopped."""
        self._standbys[0].promote()
        old, self.primary = self.primary, self._standbys.pop(0)
        self._links.reverse()
        return old

    def complete(self) -> None:
        """Waits until the standby follows the primary, and gives it a new reserve."""
        until(self._followed, 60, "a standby that follows")
        self._follow()

    def _follow(self) -> None:
        """Starts one more, which follows the last one."""
        last = self._standbys[-1] if self._standbys else self.primary
        link = self._links[len(self._standbys)]
        link.cut()
        link.resume()
        link.lead_to(last.port)
        self._standbys.append(Standby(last, port=link.port, environ=self._environ))
        self._standbys[-1].start()

    def _followed(self) -> bool:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            query = "SELECT state, sync_state FROM pg_stat_replication"
            return connection.execute(query).fetchone() == ("streaming", "sync" if self.synchronous else "async")

    def failover(self, at: float, key: str) -> Failover:
        """What a new primary knows, before anybody but this has asked it; ``at``: when the old one took its last."""
        with psycopg.connect(self.url()) as connection:
            row = connection.execute(LOOK, [key]).fetchone()
        assert row is not None
        return Failover(at, self.synchronous, *row)
