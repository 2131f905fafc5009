"""Twenty wrappers in all phases at once: holding, taking, freeing, waiting, sealing, and refused by who holds.

Each lock key has a folder with the files of a ledger (see ``tests/faults/ledger``), so that what happened to it is
proven from the records alone.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.ledger.record import COMMAND, Fault, Wrapper, append
from tests.faults.ledger.world import SEALING, now
from tests.faults.wrapper import environment, program
from tests.support.wait import until

#: The exit code of a command that was left alone, where it is not to count as a success.
OWN = 7
#: The default, and above any failover here: who has it ends with the command's own code.
LONG_TTL = 60.0
#: Below the time that a killed leader leaves the cluster without one, and above that of a switchover.
SHORT_TTL = 10.0
#: Marks of a command that is to last as long as the block, and not for ever when the tests are killed.
HOLDS = 2000
#: Nothing that a wrapper does takes longer; then it is killed, which the checker will hear of.
STUCK = 240.0
#: The lanes in which a lease is held all the time.
HOLDING = ("steady", "hasty", "late")


@dataclass
class Lane:
    """One lock key and those who want it."""

    key: str
    folder: Path
    ttl: float
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "ttl").write_text(str(self.ttl))
        for name in ("wrappers", "faults"):
            (self.folder / name).touch()

    @property
    def runs(self) -> int:
        """How many commands were started so far."""
        return len(list(self.folder.glob("command-*")))

    @property
    def ended(self) -> int:
        """How many wrappers have ended so far."""
        return (self.folder / "wrappers").read_text().count("\n")


class Crowd:
    """Its wrappers are at work inside a ``with`` block; leaving it waits for all of them."""

    def __init__(self, folder: Path, routes: Mapping[str, str], seed: int = 0) -> None:
        self._folder = folder
        self._urls = list(routes.values())
        self._seed = seed
        self._stop = threading.Event()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self.lanes: dict[str, Lane] = {}
        self._actors: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def __enter__(self) -> Crowd:
        self._assign()
        for actor in self._actors:
            actor.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        for lane in self.lanes.values():
            (lane.folder / "enough").touch()
        if kind is not None:
            self._end()
        for actor in self._actors:
            actor.join()
        if self._failures and kind is None:
            raise self._failures[0]

    def busy(self) -> None:
        """Waits until every phase has been seen: whoever is to hold holds, and the others have taken and freed."""
        before = {key: (lane.runs, lane.ended) for key, lane in self.lanes.items()}

        def seen() -> bool:
            for key, lane in self.lanes.items():
                runs, ended = before[key]
                if key.startswith(HOLDING):
                    if not lane.runs:
                        return False
                elif lane.runs <= runs or lane.ended <= ended + 1:
                    return False
            return True

        until(seen, STUCK / 2, "work in every lane")

    def note(self, kind: str, target: str) -> None:
        """Enters a fault in every lane's records."""
        for lane in self.lanes.values():
            append(lane.folder / "faults", Fault(now(), kind, target))

    def begin_late(self, number: int) -> None:
        """More wrappers take a lease of their own each, now, and hold it; each has a rival who wants it too."""
        # Seldom renewed, so that the rival often comes first when there is a server again.
        seldom = {"LOCK_LEASE_INTERVAL": 10}
        lanes = [self._lane(f"late-{each}", LONG_TTL, seldom) for each in range(number)]
        before = len(self._actors)
        for lane in lanes:
            self._actor(self._hold, lane, self._urls[0])
        for actor in self._actors[before:]:
            actor.start()
        until(lambda: all(lane.runs for lane in lanes), STUCK / 2, "the late ones")
        for lane in lanes:
            self._actor(self._rival, [lane])
            self._actors[-1].start()

    def _assign(self) -> None:
        two_hosts, proxied, pooled = self._urls
        steady = []
        for number in range(6):
            steady.append(lane := self._lane(f"steady-{number}", LONG_TTL))
            self._actor(self._hold, lane, self._urls[number % 3])
        # Who is refused all the time: the day that it is not, two run.
        self._actor(self._rival, steady)
        for number, url in enumerate((two_hosts, pooled)):
            self._actor(self._hold, self._lane(f"hasty-{number}", SHORT_TTL), url)
        turns = [self._lane("turns-0", LONG_TTL), self._lane("turns-1", LONG_TTL)]
        for lane, url in zip([*turns, *turns, turns[0]], [two_hosts, two_hosts, proxied, pooled, pooled], strict=True):
            self._actor(self._take_turns, lane, url)
        queue = self._lane("queue", LONG_TTL, {"LOCK_WAIT_SECONDS": 100})
        ticks = self._lane("ticks", LONG_TTL, SEALING)
        for url in self._urls:
            self._actor(self._take_turns, queue, url)
            self._actor(self._take_turns, ticks, url)

    def _lane(self, key: str, ttl: float, settings: Mapping[str, object] | None = None) -> Lane:
        lane = self.lanes[key] = Lane(key, self._folder / key, ttl, settings or {})
        return lane

    def _actor(self, work: Callable[..., None], *arguments: object) -> None:
        chance = random.Random(f"{self._seed}-{len(self._actors)}")

        def act() -> None:
            try:
                work(chance, *arguments)
            except BaseException as failure:  # noqa: BLE001 - raised where the block is left
                self._failures.append(failure)

        self._actors.append(threading.Thread(target=act))

    def _hold(self, chance: random.Random, lane: Lane, url: str) -> None:
        """Holds the lease until the end, and takes it again where it was lost."""
        while not self._stop.is_set():
            self._run(lane, url, marks=HOLDS, wanted=OWN, pause=0.5)
            self._stop.wait(chance.uniform(0.5, 1))

    def _rival(self, chance: random.Random, lanes: list[Lane]) -> None:
        while not self._stop.wait(chance.uniform(0.2, 0.6)):
            self._run(chance.choice(lanes), chance.choice(self._urls), marks=1, wanted=OWN)

    def _take_turns(self, chance: random.Random, lane: Lane, url: str) -> None:
        """Short runs, one after the other."""
        while not self._stop.wait(chance.uniform(0.1, 0.8)):
            # Only a success seals.
            wanted = chance.choice((0, 0, OWN)) if lane.key == "ticks" else OWN
            self._run(lane, url, marks=chance.randrange(1, 8), wanted=wanted)

    def _run(self, lane: Lane, url: str, *, marks: int, wanted: int, pause: float = 0.1) -> None:
        settings = {
            "LOCK_KEY": lane.key,
            "LOCK_STRATEGY": "lease",
            "RUN_LOCK_TTL_SECONDS": lane.ttl,
            "LOCK_LEASE_INTERVAL": 1,
            "LOCK_KILL_GRACE_SECONDS": 1,
            "LOCK_CONNECT_TIMEOUT_SECONDS": 60,
            **lane.settings,
            "DATABASE_URL": url,
            "LEDGER": lane.folder,
            "MARK_PAUSE": pause,
        }
        err = lane.folder / f"err-{threading.get_ident()}"
        with err.open("wb") as sink:
            process = subprocess.Popen(
                [*program(), "DATABASE_URL", "sh", "-c", COMMAND, "work", str(marks), str(wanted), "obey"],
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,
            )
        entry = Wrapper(f"{os.uname().nodename}:{process.pid}", now(), wanted)
        with self._lock:
            self._running[process.pid] = process
        limit = time.monotonic() + STUCK
        while True:
            try:
                process.wait(1)
                break
            except subprocess.TimeoutExpired:
                # One that holds runs as long as the block; the time of all others is bounded.
                if not self._stop.is_set() and marks == HOLDS:
                    limit = time.monotonic() + STUCK
                elif time.monotonic() > limit:
                    process.kill()
        with self._lock:
            del self._running[process.pid]
        entry.ended = now()
        entry.code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        entry.err = err.read_text(errors="replace")
        with self._lock:
            append(lane.folder / "wrappers", entry)

    def _end(self) -> None:
        """Leaves nothing behind when the block failed."""
        with self._lock:
            for process in self._running.values():
                process.send_signal(signal.SIGTERM)
