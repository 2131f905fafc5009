"""The hosts, the servers behind them, and the wrappers that are started again and again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.ledger.record import COMMAND, Wrapper, append
from tests.faults.ledger.servers import Servers
from tests.faults.wrapper import environment, program
from tests.support import clock
from tests.support.proxy import Proxy

TTL = 4.0
SETTINGS = {
    "LOCK_KEY": "ledger",
    "LOCK_STRATEGY": "lease",
    "RUN_LOCK_TTL_SECONDS": TTL,
    "LOCK_LEASE_INTERVAL": 0.5,
    "LOCK_KILL_GRACE_SECONDS": 1,
    "LOCK_CONNECT_TIMEOUT_SECONDS": 6,
}
#: Some want to seal a tick besides, and may come a second early.
SEALING = {
    "LOCK_STRATEGY": "schedule,lease",
    "LOCK_SLOT_CONSUMED_BY": "success",
    "CRON_SCHEDULE": "* * * * * */5",
    "CRON_TZ": "UTC",
    "LOCK_SLOT_TOLERANCE_SECONDS": 1,
}
#: The lease's row.
ROW = "cronjob-lock:lease:ledger"
#: Nothing that a wrapper does takes longer when it is not paused; then it is killed, which the checker will hear of.
PATIENCE = 60.0


def now() -> float:
    """By the clock of the commands, so that what happened here can be put in order with what they did."""
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass
class Host:
    name: str
    proxy: Proxy
    url: str
    clock: dict[str, str]
    """A wall clock that is wrong: nothing may depend on it."""
    prefix: list[str]


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    entry: Wrapper
    host: Host
    paused: bool = False


class World:
    """Two servers, hosts with a network each, and as many actors as wrappers are to be at work at one time."""

    def __init__(self, folder: Path, seed: int, *, synchronous: bool, wrappers: int, hosts: int) -> None:
        self.folder = folder
        self.running: dict[int, Running] = {}
        self.lock = threading.Lock()
        self._seed, self._wrappers, self._hosts = seed, wrappers, hosts
        self._stop = threading.Event()
        self.servers = Servers(synchronous=synchronous)
        self.hosts: list[Host] = []
        (folder / "ttl").write_text(str(TTL))
        for name in ("wrappers", "faults", "failovers"):
            (folder / name).touch()

    @contextlib.contextmanager
    def up(self) -> Iterator[World]:
        with contextlib.ExitStack() as stack:
            stack.callback(self.servers.end)
            self.servers.begin()
            for number in range(self._hosts):
                proxy = stack.enter_context(Proxy("127.0.0.1", self.servers.primary.port))
                self.hosts.append(self._host(number, proxy))
            yield self

    def _host(self, number: int, proxy: Proxy) -> Host:
        name = f"host{number}"
        prefix: list[str] = []
        if os.geteuid() == 0 and shutil.which("unshare"):
            # A UTS namespace of its own gives each wrapper its host's name; without, they are one host to the eye.
            prefix = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
        offsets = (0.0, 3600.0, -3600.0, 0.8, -0.8)
        wrong = {}
        if clock.library() and offsets[number % 5]:
            wrong = clock.shifted(offsets[number % 5])
        return Host(name, proxy, proxy.url(self.servers.primary.url(user="app")), wrong, prefix)

    def work(self, seconds: float) -> None:
        """Starts wrappers for so long, then waits for those that run."""
        actors = [
            threading.Thread(target=self._act, args=(random.Random(f"{self._seed}-{number}"), number))
            for number in range(self._wrappers)
        ]
        for actor in actors:
            actor.start()
        self._stop.wait(seconds)
        self._stop.set()
        for actor in actors:
            actor.join()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def _act(self, chance: random.Random, number: int) -> None:
        host = self.hosts[number % len(self.hosts)]
        while not self._stop.wait(chance.expovariate(1 / 3)):
            self._run(chance, host)

    def _run(self, chance: random.Random, host: Host) -> None:
        wanted = chance.choice((0, 0, 7))
        marks = chance.randrange(2, 15) if chance.random() < 0.75 else chance.randrange(50, 120)
        command = ["sh", "-c", COMMAND, "work", str(marks), str(wanted)]
        command.append(chance.choice(("obey", "obey", "obey", "ignore")))
        err = self.folder / f"err-{threading.get_ident()}"
        waits = {"LOCK_WAIT_SECONDS": 2 * TTL} if chance.random() < 0.3 else {}
        seals = SEALING if chance.random() < 0.3 else {}
        settings = {**SETTINGS, **seals, **waits, "DATABASE_URL": host.url, "LEDGER": self.folder, **host.clock}
        with err.open("wb") as sink:
            process = subprocess.Popen(
                [*host.prefix, *program(), "DATABASE_URL", *command],
                env=environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,
            )
        # unshare and sh become the wrapper, so its number is known from the first moment.
        name = host.name if host.prefix else os.uname().nodename
        running = Running(process, Wrapper(f"{name}:{process.pid}", now(), wanted), host)
        with self.lock:
            self.running[process.pid] = running
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            running.entry.done.append("stuck")
            process.kill()
            process.wait()
        with self.lock:
            del self.running[process.pid]
            entry = running.entry
            entry.ended = now()
            entry.code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            entry.err = err.read_text(errors="replace")
            append(self.folder / "wrappers", entry)

    def enter(self, word: str, owner: str | None = None) -> None:
        """Enters what is about to happen to the row of that owner, or to everybody's."""
        with self.lock:
            for running in self.running.values():
                if owner in (None, running.entry.owner):
                    running.entry.done.append(word)

    def send(self, running: Running, number: int, word: str) -> bool:
        """Signals a wrapper that still runs, and enters it in its line."""
        with self.lock:
            if running.process.pid not in self.running:
                return False
            # Entered first: it may have its effect before anything else happens here.
            if word:
                running.entry.done.append(word)
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, number)
            running.paused = number == signal.SIGSTOP
            return True
