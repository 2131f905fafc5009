"""One failover with the crowd at work: what was done, how long nobody took writes, and what the records prove."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from tests.cluster.crowd import LONG_TTL, Crowd, Lane
from tests.cluster.patroni import PATIENCE, Cluster, Node
from tests.conftest import KEY_VALUE
from tests.faults.ledger.check import LOST, check
from tests.faults.ledger.record import Ledger
from tests.support.wait import until

#: Seconds for which both nodes take connections.
SPLIT = 3.0
#: Leases that are taken while the standby gets nothing.
LATE = 4


def furnish(cluster: Cluster) -> None:
    """An empty lock table, and one for the probe."""
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS key_value, probe")
        connection.execute(KEY_VALUE)
        connection.execute("CREATE TABLE probe (n bigint)")
        connection.execute("INSERT INTO probe VALUES (0)")


class Probe:
    """Writes all the time, each time on a new connection, and notes when it was confirmed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._confirmed: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            # A server that is stopped never answers: the thread that waits for it is left behind.
            attempt = threading.Thread(target=self._write, daemon=True)
            attempt.start()
            attempt.join(2)

    def _write(self) -> None:
        # Unprepared: the connection behind a pooler may be another one the next time.
        options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "connect_timeout": 3}
        with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, **options) as connection:
            doubts: list[object] = []
            connection.add_notice_handler(doubts.append)
            connection.execute("UPDATE probe SET n = n + 1")
            if not doubts:
                self._confirmed.append(time.monotonic())

    def confirmed_since(self, moment: float) -> bool:
        return any(each > moment for each in self._confirmed[-5:])

    def outage(self, since: float) -> float:
        """The longest time without a confirmed write that ended after ``since``."""
        times = sorted(self._confirmed)
        return max((b - a for a, b in pairwise(times) if b > since), default=0.0)


@dataclass
class Report:
    """What the records say of one failover."""

    kind: str
    outages: Mapping[str, float]
    """Seconds without a confirmed write, for each way to the leader."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    revealed: list[str] = field(default_factory=list)
    """Overlaps that a server which forgets has allowed; whatever compares tokens refuses the earlier one."""

    HEAD = (
        "| failover | seconds without a write: two hosts / HAProxy / PgBouncer | holders, TTL 60 s: went on "
        "| holders, TTL 10 s: ended with 75 | other runs | ended with 1, nothing run | acquisitions lost | overlaps "
        "| violations |\n|---|---|---|---|---|---|---|---|---|"
    )

    def __str__(self) -> str:
        counts = self.counts
        cells = [
            self.kind,
            " / ".join(f"{seconds:.1f}" for seconds in self.outages.values()),
            f"{counts['held on']} of {counts['held on'] + counts['held, lost']}",
            f"{counts['hasty, lost']} of 2",
            str(counts["short runs"]),
            str(counts["failed"]),
            str(counts["forgotten"]),
            str(len(self.revealed)),
            str(len(self.violations)),
        ]
        return "| " + " | ".join(cells) + " |"


def kill(cluster: Cluster, crowd: Crowd) -> None:
    """The machine of the leader dies."""
    cluster.lead().kill()


def switch_over(cluster: Cluster, crowd: Crowd) -> None:
    cluster.switch_over()


def pause(cluster: Cluster, crowd: Crowd) -> None:
    """The leader's machine stands still until the other node leads; then its server goes on, until a watchdog comes."""
    old = stand_still(cluster)
    old.resume_server()
    time.sleep(SPLIT)
    old.kill()


def pause_unwatched(cluster: Cluster, crowd: Crowd) -> None:
    """As before, but Patroni goes on as well.

    3.0.2 may then overwrite the other's key in etcd and take the lead back: what the other confirmed is lost.
    """
    stand_still(cluster).resume()


def stand_still(cluster: Cluster) -> Node:
    old = cluster.lead()
    old.pause()
    until(lambda: cluster.other(old).ask("/leader")[0] == 200, PATIENCE, "another leader")
    return old


def kill_lagging(cluster: Cluster, crowd: Crowd) -> None:
    """The machine of the leader dies when its standby has got nothing for a while."""
    leader = cluster.lead()
    for sender in leader.processes_named("walsender"):
        sender.suspend()
    crowd.begin_late(LATE)
    leader.kill()


KINDS: dict[str, Callable[[Cluster, Crowd], None]] = {
    "SIGKILL": kill,
    "switchover": switch_over,
    "pause": pause,
    "pause, no watchdog": pause_unwatched,
    "SIGKILL, standby lags": kill_lagging,
}


def fail_over(cluster: Cluster, kind: str, routes: Mapping[str, str], folder: Path, seed: int = 0) -> Report:
    """Does it once, with the crowd at work before, meanwhile and afterwards, and judges what the crowd left."""
    folder.mkdir(parents=True)
    furnish(cluster)
    with contextlib.ExitStack() as stack:
        probes = {way: stack.enter_context(Probe(url)) for way, url in routes.items()}
        crowd = stack.enter_context(Crowd(folder, routes, seed))
        crowd.busy()
        old = cluster.lead()
        crowd.note(kind, old.name)
        began = time.monotonic()
        KINDS[kind](cluster, crowd)
        until(lambda: cluster.other(old).ask("/leader")[0] == 200, PATIENCE, "another leader")
        done = time.monotonic()
        for way, probe in probes.items():
            until(partial(probe.confirmed_since, done), PATIENCE, f"a write at the new leader through {way}")
        outages = {way: probe.outage(began) for way, probe in probes.items()}
        cluster.heal()
        taken_back = cluster.lead() is old
        crowd.busy()
    forgetful = taken_back or not cluster.synchronous
    return judge(kind + ", lead taken back" * taken_back, outages, crowd.lanes.values(), forgetful=forgetful)


def judge(kind: str, outages: Mapping[str, float], lanes: Iterable[Lane], *, forgetful: bool) -> Report:
    report = Report(kind, outages)
    for lane in lanes:
        ledger = Ledger.read(lane.folder)
        verdict = check(ledger, forgetful=forgetful)
        report.violations += [f"{lane.key}: {violation}" for violation in verdict.violations]
        report.revealed += [f"{lane.key}: {overlap}" for overlap in verdict.revealed]
        report.counts["failed"] += verdict.counts["failed"]
        owners = {work.owner for work in ledger.works}
        # Whoever had it before the failover; those who come later do not count as having gone on.
        holder = min(ledger.works, key=lambda work: work.token).owner
        for wrapper in ledger.wrappers:
            lost = wrapper.code == LOST
            report.counts["forgotten"] += lost and _forgotten(wrapper.err)
            if wrapper.owner not in owners:
                continue
            if lane.key.startswith("steady"):
                report.counts["held, lost" if lost else "held on"] += wrapper.owner == holder
            elif lane.key.startswith("hasty"):
                report.counts["hasty, lost"] += lost and wrapper.owner == holder
            else:
                report.counts["short runs"] += 1
            if lost and lane.ttl == LONG_TTL and not forgetful and max(outages.values()) < LONG_TTL / 2:
                report.violations.append(f"{lane.key}: lost although its TTL is above the outage: {wrapper}")
    return report


def _forgotten(err: str) -> bool:
    """Whether it was told that the server has no trace of what it had taken: not even an older end of its own row."""
    return "was removed" in err or ("now names" in err and "by a failover" not in err)
