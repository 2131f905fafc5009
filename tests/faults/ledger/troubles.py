"""The faults: each is begun, and most are ended a while later, on a seeded random schedule."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg

from tests.faults.ledger.record import Fault, append
from tests.faults.ledger.world import ROW, TTL, Host, Running, World, now

Undo = Callable[[], None]
#: Of so many troubles one is a failover: the second, so that a short run has one too.
FAILOVERS = 9


class Troubles:
    """Makes trouble until the world stops. The order of kinds and pauses depends on the seed alone."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = random.Random(f"{seed}-troubles")
        self._due: list[tuple[float, Undo]] = []
        self.counts: Counter[str] = Counter()
        self._ahead = 0.0
        #: When the server's clock has come back to what it had shown before it was set back.
        self._caught_up = 0.0
        self._thread = threading.Thread(target=self._work)
        self._failure: BaseException | None = None
        self._kinds: dict[str, tuple[int, Callable[[], str | None]]] = {
            "wrapper killed": (8, self._kill),
            "wrapper paused": (12, self._pause),
            "wrapper terminated": (8, self._terminate),
            "network wedged": (6, lambda: self._network("wedge", 6)),
            "network slow": (6, lambda: self._network("delay", 4, self._chance.uniform(0.02, 0.4))),
            "network refusing": (4, lambda: self._network("refuse", 4)),
            "answers swallowed": (5, lambda: self._network("swallow_answers", 4)),
            "connections cut": (6, lambda: self._network("cut", None)),
            "connections half closed": (4, lambda: self._network("half_close", None)),
            "claim's answer lost": (5, lambda: self._lose(b"INSERT INTO")),
            "renewal's answer lost": (5, lambda: self._lose(b"UPDATE")),
            "server restarted at once": (2, self._restart),
            "backends terminated": (5, self._terminate_backends),
            "backend frozen": (6, self._freeze),
            "connections exhausted": (3, self._crowd),
            "row locked": (5, lambda: self._lock("SELECT FROM key_value FOR UPDATE")),
            "row changed by force": (7, self._force),
            "server's clock set forward": (3, self._set_forward),
            "server's clock set back": (3, self._set_back),
            "standby lags": (4, self._lag),
            "table locked": (3, lambda: self._lock("LOCK TABLE key_value IN EXCLUSIVE MODE")),
        }

    def __enter__(self) -> Troubles:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._failure:
            raise self._failure

    def _work(self) -> None:
        kinds = list(self._kinds)
        weights = [self._kinds[kind][0] for kind in kinds]
        try:
            for number in itertools.count(1):
                if self._world.stopping:
                    return
                kind = self._chance.choices(kinds, weights)[0]
                target: str | None = "servers"
                if number % FAILOVERS == 2:
                    kind = self._fail_over()
                else:
                    target = self._kinds[kind][1]()
                if target is not None:
                    self.counts[kind] += 1
                    append(self._world.folder / "faults", Fault(now(), kind, target))
                self._undo_until(time.monotonic() + self._chance.uniform(0.4, 2.4))
        except BaseException as failure:  # noqa: BLE001 - raised where the block is left
            self._failure = failure
        finally:
            for _, undo in self._due:
                undo()

    def _undo_until(self, end: float) -> None:
        while True:
            self._due.sort(key=lambda entry: entry[0])
            while self._due and self._due[0][0] <= time.monotonic():
                self._due.pop(0)[1]()
            remaining = min([end, *(moment for moment, _ in self._due[:1])]) - time.monotonic()
            if time.monotonic() >= end:
                return
            time.sleep(max(0.0, remaining))

    def _undo_while(self, work: Callable[[], None]) -> None:
        """Does what takes long, and ends meanwhile what is to be ended."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(work)
            while not done.done():
                self._undo_until(time.monotonic() + 0.1)
            done.result()

    def _later(self, longest: float, undo: Undo, shortest: float = 0.3) -> None:
        self._due.append((time.monotonic() + self._chance.uniform(shortest, longest), undo))

    # Wrappers

    def _victim(self) -> Running | None:
        """Often the one that holds the lease, else anyone."""
        with self._world.lock:
            running = list(self._world.running.values())
        wanted = self._holder() if self._chance.random() < 0.5 else None
        holder = next((each for each in running if each.entry.owner == wanted), None)
        return holder or (self._chance.choice(running) if running else None)

    def _holder(self) -> str | None:
        with contextlib.suppress(psycopg.Error):
            rows = self._ask(f"SELECT value FROM key_value WHERE key = '{ROW}' AND expire_at > clock_timestamp()")
            return str(rows[0][0]) if rows else None
        return None

    def _kill(self) -> str | None:
        victim = self._victim()
        return victim.entry.owner if victim and self._world.send(victim, signal.SIGKILL, "kill") else None

    def _terminate(self) -> str | None:
        victim = self._victim()
        return victim.entry.owner if victim and self._world.send(victim, signal.SIGTERM, "term") else None

    def _pause(self) -> str | None:
        victim = self._victim()
        if not victim or victim.paused or not self._world.send(victim, signal.SIGSTOP, "pause"):
            return None
        # Short enough to be nothing, or long enough for somebody else to begin.
        longest, shortest = self._chance.choice(((1.0, 0.3), (4 * TTL, 1.5 * TTL)))
        self._later(longest, lambda: void(self._world.send(victim, signal.SIGCONT, "")), shortest)
        return victim.entry.owner

    # Networks

    def _network(self, trouble: str, longest: float | None, *arguments: float) -> str:
        host: Host = self._chance.choice(self._world.hosts)
        getattr(host.proxy, trouble)(*arguments)
        if longest is not None:
            self._later(longest, host.proxy.resume)
        return host.name

    def _lose(self, request: bytes) -> str:
        host: Host = self._chance.choice(self._world.hosts)
        host.proxy.lose_answer(request, then_cut=self._chance.random() < 0.5)
        return host.name

    # The server

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._world.servers.url(), autocommit=True, connect_timeout=2) as connection:
            connection.execute("SET statement_timeout = '2s'")
            return connection.execute(query).fetchall()

    def _restart(self) -> str:
        self._world.servers.primary.stop("immediate")
        self._undo_until(time.monotonic() + self._chance.uniform(0.0, 1.5 * TTL))
        self._world.servers.primary.start()
        return "server"

    def _lag(self) -> str:
        self._world.servers.lag()
        self._later(TTL, self._world.servers.catch_up)
        return "standby"

    def _fail_over(self) -> str:
        """The primary dies while somebody holds the lease, if that can be, and the standby is promoted.

        Often the standby lags, and lacks whatever the holder was told. A synchronous primary may live on for a while,
        and half of the hosts still ask it.
        """
        world, servers = self._world, self._world.servers
        nobody: list[str | None] = [None]
        patience = 3 * TTL
        if self._chance.random() < 0.6:
            nobody.append(self._holder())
            servers.lag()
            # A synchronous one confirms nothing meanwhile.
            patience = TTL if servers.synchronous else patience
        limit = time.monotonic() + self._chance.uniform(0.5, patience)
        while self._holder() in nobody and time.monotonic() < limit:
            self._undo_until(time.monotonic() + 0.1)
        lives_on = servers.synchronous and self._chance.random() < 0.3
        if not lives_on:
            servers.primary.stop("immediate")
            at = now()
            # Often short enough for a successor to begin before the holder hears of it.
            self._undo_until(time.monotonic() + self._chance.choice((0.0, 0.0, self._chance.uniform(0.0, 1.5 * TTL))))
        old = servers.promote()
        if lives_on:
            at = now()
        append(world.folder / "failovers", servers.failover(at, ROW))
        for host in world.hosts[:: 2 if lives_on else 1]:
            host.proxy.lead_to(servers.primary.port)
        if lives_on:
            self._undo_until(time.monotonic() + self._chance.uniform(0.5, TTL))
            for host in world.hosts:
                host.proxy.lead_to(servers.primary.port)
        old.__exit__(None, None, None)
        self._undo_while(servers.complete)
        return "failover, the old primary lives on" if lives_on else "failover"

    def _terminate_backends(self) -> str | None:
        with contextlib.suppress(psycopg.Error):
            self._ask("SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = 'app'")
            return "server"
        return None

    def _freeze(self) -> str | None:
        with contextlib.suppress(psycopg.Error, psutil.NoSuchProcess):
            rows = self._ask("SELECT pid::text FROM pg_stat_activity WHERE usename = 'app'")
            if rows:
                backend = psutil.Process(int(self._chance.choice(rows)[0]))
                backend.suspend()
                self._later(5, lambda: thaw(backend))
                return str(backend.pid)
        return None

    def _crowd(self) -> str:
        guests = contextlib.ExitStack()
        with contextlib.suppress(psycopg.Error):
            while True:
                guests.enter_context(psycopg.connect(self._world.servers.primary.url(user="app"), connect_timeout=2))
        self._later(4, lambda: leave(guests))
        return "server"

    def _force(self) -> str | None:
        """Somebody deletes the row, or makes it another's for a moment.

        Not while the clock is behind: nothing could keep a token from falling when the row's end is gone as well.
        """
        if time.monotonic() < self._caught_up:
            return None
        with contextlib.suppress(psycopg.Error):
            with psycopg.connect(self._world.servers.url(), connect_timeout=2) as connection:
                connection.execute("SET LOCAL lock_timeout = '1s'")
                held = f"SELECT value FROM key_value WHERE key = '{ROW}' AND expire_at > clock_timestamp() FOR UPDATE"
                row = connection.execute(held).fetchone()
                if row is None:
                    return None
                self._world.enter("force", row[0])
                if self._chance.random() < 0.5:
                    connection.execute("DELETE FROM key_value WHERE key = %s", [ROW])
                else:
                    ends = "clock_timestamp() + interval '1 second'"
                    thief = f"UPDATE key_value SET value = 'thief:1', expire_at = {ends} WHERE key = %s"
                    connection.execute(thief, [ROW])
            return str(row[0])
        return None

    def _set_forward(self) -> str | None:
        if self._world.servers.clock is None:
            return None
        self._world.enter("clock")
        return self._set_clock(self._chance.choice((0.5, 2 * TTL)))

    def _set_back(self) -> str | None:
        """Only where both servers have the row, whose end keeps tokens from falling, and no failover can lose it."""
        if self._world.servers.clock is None or time.monotonic() < self._caught_up:
            return None
        with contextlib.suppress(psycopg.Error):
            query = "SELECT 1 FROM key_value, pg_stat_replication WHERE sync_state = 'sync'"
            if self._ask(f"{query} AND key = '{ROW}' AND flush_lsn >= pg_current_wal_lsn()"):
                step = self._chance.uniform(0.5, TTL)
                self._caught_up = time.monotonic() + step
                return self._set_clock(-step)
        return None

    def _set_clock(self, step: float) -> str:
        assert self._world.servers.clock is not None
        self._ahead += step
        self._world.servers.clock.set(f"{self._ahead:+.3f}")
        return "server"

    def _lock(self, statement: str) -> str | None:
        with contextlib.suppress(psycopg.Error):
            connection = psycopg.connect(self._world.servers.url(), connect_timeout=2)
            try:
                # A superuser's own lock must not wait behind what it is to disturb.
                connection.execute("SET LOCAL lock_timeout = '1s'")
                connection.execute(statement)
            except psycopg.Error:
                connection.close()
                raise
            self._later(1.2 * TTL, connection.close)
            return "key_value"
        return None


def void(_: object) -> None:
    return


def thaw(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()


def leave(guests: contextlib.ExitStack) -> None:
    with contextlib.suppress(psycopg.Error):
        guests.close()
