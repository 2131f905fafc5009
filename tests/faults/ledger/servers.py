"""A primary and a standby that takes its place, again and again."""

from __future__ import annotations

import contextlib

import psycopg

from tests.conftest import KEY_VALUE
from tests.faults.ledger.record import Failover
from tests.support import clock
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.replicas import Standby

SETTINGS = {
    "max_connections": 30,
    "superuser_reserved_connections": 4,
    "wal_level": "replica",
    "max_wal_senders": 4,
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "200ms",
    # The name that a standby gives itself. With "*" a base backup that is under way would count as one.
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
    """Both servers. ``synchronous``: the primary confirms nothing that the standby does not have."""

    def __init__(self, *, synchronous: bool) -> None:
        self.synchronous = synchronous
        #: The one of both, which can be set where there is libfaketime.
        self.clock = clock.Settable() if clock.library() else None
        self._environ = self.clock.environment if self.clock else {}
        names = "standby" if synchronous else ""
        self.primary = Postgres({**SETTINGS, "synchronous_standby_names": names}, environ=self._environ)
        self._standby: Standby | None = None
        #: The network between the two.
        self._link = Proxy("127.0.0.1", self.primary.port)

    def begin(self) -> None:
        """Starts both, with the lock table and the role ``app``, whose settings would undo each promise."""
        self._link.__enter__()
        self.primary.start()
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
            connection.execute("CREATE ROLE app LOGIN")
            connection.execute("ALTER ROLE app SET synchronous_commit = off")
            connection.execute("GRANT SELECT, INSERT, UPDATE ON key_value TO app")
        self.replace_standby()

    def end(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self.primary)
            if self._standby:
                stack.push(self._standby)
            stack.push(self._link)

    def url(self) -> str:
        """The primary's, for the troubles themselves."""
        return self.primary.url(query=ALONE)

    def lag(self) -> None:
        """From now on the standby gets nothing."""
        self._link.wedge()

    def catch_up(self) -> None:
        self._link.resume()

    def promote(self) -> Postgres:
        """Makes the standby the primary; the answer is the old one, which is stopped or to be stopped."""
        assert self._standby is not None
        self._standby.promote()
        old, self.primary, self._standby = self.primary, self._standby, None
        return old

    def replace_standby(self) -> None:
        """Makes a new standby of the primary. Until it follows, a synchronous primary confirms nothing."""
        self._link.lead_to(self.primary.port)
        self._link.cut()
        self._link.resume()
        self._standby = Standby(self.primary, port=self._link.port, environ=self._environ)
        self._standby.start()

    def failover(self, at: float, key: str) -> Failover:
        """What a new primary knows, before anybody but this has asked it; ``at``: when the old one took its last."""
        with psycopg.connect(self.url()) as connection:
            row = connection.execute(LOOK, [key]).fetchone()
        assert row is not None
        return Failover(at, self.synchronous, *row)
