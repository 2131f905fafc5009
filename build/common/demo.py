"""The demonstration: what the locks do for a cron job, a migration and an operator, on a temporary PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from build.common.postgres import Postgres
from build.common.tools import ROOT

WIDTH = 80
HOSTS = 5
#: Takes half a second, and prints its tick.
REPORT = ["/bin/sh", "-c", 'sleep 0.5; echo "wrote the report of $DISLOCK_SLOT"']


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Demo:
    def __init__(self, program: Path, server: Postgres, folder: Path) -> None:
        self._program = program
        self._server = server
        self._folder = folder
        self._surprises = 0
        # Half a day away, so that no tick comes while this runs.
        self._daily = f"0 {(datetime.now(timezone.utc).hour + 12) % 24} * * *"

    def sql(self, statement: str) -> str:
        return self._server.program("psql", "-X", "-At", "-d", self._server.url(), "-c", statement).strip()

    def start(self, settings: dict[str, str], command: Sequence[str], gate: int | None = None) -> subprocess.Popen[str]:
        """Starts the command under dislock; with a gate, only when the other end of the gate is closed."""
        line = [str(self._program), "DATABASE_URL", *command]
        if gate is not None:
            line = ["/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "gate", *line]
        return self._popen(settings, line, gate)

    def _popen(self, settings: dict[str, str], line: Sequence[str], stdin: int | None = None) -> subprocess.Popen[str]:
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return subprocess.Popen(
            line,
            env={**environ, "DATABASE_URL": self._server.url(), "LOCK_JOURNAL": "runs", "CRON_TZ": "UTC", **settings},
            cwd=self._folder,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, settings: dict[str, str], command: Sequence[str]) -> Ended:
        return ended(self.start(settings, command))

    def ask(self, *options: str) -> Ended:
        """One of the operator's commands."""
        return ended(self._popen({}, [str(self._program), *options, "DATABASE_URL"]))

    def at_once(self, count: int, settings: dict[str, str], command: Sequence[str]) -> list[Ended]:
        gate, release = os.pipe()
        started = [self.start(settings, command, gate) for _ in range(count)]
        os.close(gate)
        os.close(release)
        return [ended(process) for process in started]

    def expect(self, holds: bool, sentence: str) -> None:
        print(f"   {'->' if holds else '!! NOT AS PROMISED:'} {sentence}")
        self._surprises += not holds

    def hosts(self) -> None:
        title(f"1  {HOSTS} hosts start one daily job at the same moment")
        shell(f"CRON_TZ=UTC CRON_SCHEDULE='{self._daily}' LOCK_KEY=report dislock ...")
        results = self.at_once(HOSTS, {"LOCK_KEY": "report", "CRON_SCHEDULE": self._daily}, REPORT)
        for number, result in enumerate(results, 1):
            row(f"host {number}", result.code, said(result) or "(silent: another host has this tick)")
        runs = sum(bool(result.out) for result in results)
        self.expect(runs == 1 and not any(r.code or r.err for r in results), f"started {runs} time of {HOSTS}")

    def waiting(self) -> None:
        title("2  Three replicas come up, and each wants to migrate the database first")
        shell("LOCK_KEY=migrate LOCK_STRATEGY=lease LOCK_WAIT_SECONDS=60 dislock ...")
        settings = {"LOCK_KEY": "migrate", "LOCK_STRATEGY": "lease", "LOCK_WAIT_SECONDS": "60"}
        # Two migrations at once would both find nothing done.
        migrate = "if [ -e done ]; then echo nothing left to do; else sleep 0.5; touch done; echo migrated; fi"
        results = self.at_once(3, settings, ["/bin/sh", "-c", migrate])
        for number, result in enumerate(results, 1):
            row(f"replica {number}", result.code, said(result))
        fair = sorted(result.out for result in results) == ["migrated\n", *["nothing left to do\n"] * 2]
        self.expect(fair and not any(r.code or r.err for r in results), "one after another; none went on before")

    def takeover(self) -> None:
        title("3  A host dies in the middle of a run, and a waiting one takes the tick over")
        shell("LOCK_STRATEGY=schedule,lease LOCK_SLOT_CONSUMED_BY=success ...")
        settings = {
            "LOCK_KEY": "nightly",
            "CRON_SCHEDULE": self._daily,
            "LOCK_STRATEGY": "schedule,lease",
            "LOCK_SLOT_CONSUMED_BY": "success",
            "LOCK_WAIT_SECONDS": "60",
            "RUN_LOCK_TTL_SECONDS": "2",
        }
        first = self.start(settings, ["sleep", "60"])
        self._row_of("cronjob-lock:lease:nightly")
        second = self.start(settings, REPORT)
        kill_all_of(first)
        died, took = ended(first), ended(second)
        third = self.run(settings, REPORT)
        row("host 1", died.code, "(killed, with its command)")
        row("host 2", took.code, said(took))
        row("host 3", third.code, said(third) or "(silent: the tick is sealed)")
        self.expect((bool(took.out), took.code, third.out, third.code) == (True, 0, "", 0), "completed once")

    def loss(self) -> None:
        title("4  The lease is taken away while the job runs")
        settings = {"LOCK_KEY": "sync", "LOCK_STRATEGY": "lease", "RUN_LOCK_TTL_SECONDS": "3"}
        shell("LOCK_KEY=sync LOCK_STRATEGY=lease dislock DATABASE_URL ./sync")
        job = ["/bin/sh", "-c", "exec 2>/dev/null; trap 'echo stopped; exit 0' TERM; while :; do sleep 0.05; done"]
        holder = self.start(settings, job)
        self._row_of("cronjob-lock:lease:sync")
        self.sql("UPDATE key_value SET value = 'intruder:1' WHERE key = 'cronjob-lock:lease:sync'")
        result = ended(holder)
        row("./sync", 0, result.out.strip())
        row("dislock", result.code, result.err.strip())
        self.expect((result.code, result.out) == (75, "stopped\n"), "no success on a lock that was lost")

    def advisory(self) -> None:
        title("5  Without a table, against an application that uses pg_advisory_lock")
        shell("""LOCK_KEY='["invoice","42"]' LOCK_STRATEGY=advisory dislock ...""")
        settings = {"LOCK_KEY": '["invoice","42"]', "LOCK_STRATEGY": "advisory"}
        job = "touch held; while [ ! -e go ]; do sleep 0.05; done; echo sent"
        holder = self.start(settings, ["/bin/sh", "-c", job])
        until((self._folder / "held").exists, "held")
        other = self.run(settings, ["echo", "sent twice"])
        (self._folder / "go").touch()
        done = ended(holder)
        row("job 1", done.code, said(done))
        row("job 2", other.code, said(other) or "(silent: it is held)")
        self.expect((done.out, other.out, done.code, other.code) == ("sent\n", "", 0, 0), "never two at once")

    def record(self) -> None:
        title("6  What the operator sees the next morning")
        for option, code, sentence in (
            ("--runs", 0, "the journal, newest first"),
            ("--overdue", 2, "exit code 2, by the convention of Nagios: somebody should look at one job"),
        ):
            shell(f"LOCK_JOURNAL=runs dislock {option} DATABASE_URL")
            result = self.ask(option)
            for line in (result.out + result.err).splitlines():
                print(f"   {line}")
            self.expect(result.code == code and not result.err, sentence)

    def _row_of(self, key: str) -> None:
        """Waits until a live row shows that the lock is held."""
        held = f"SELECT 1 FROM key_value WHERE key = '{key}' AND expire_at > now()"  # noqa: S608 - our keys
        until(lambda: self.sql(held), f"row {key}")

    def show(self) -> int:
        version = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        began = time.monotonic()
        if self.ask("--init").code:
            self.expect(False, "--init made the tables")
        print(f"{version},\n{self._program.relative_to(ROOT)}, on PostgreSQL {self.sql('SHOW server_version')}")
        print(f"{'':22}exit  output")
        for scene in (self.hosts, self.waiting, self.takeover, self.loss, self.advisory, self.record):
            scene()
        print(f"\nAll of it in {time.monotonic() - began:.0f} s; the server and its data are gone again.")
        return 1 if self._surprises else 0


def ended(process: subprocess.Popen[str]) -> Ended:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Ended(process.returncode, out, err)


def said(result: Ended) -> str:
    return result.out.strip() or result.err.strip()


def kill_all_of(process: subprocess.Popen[str]) -> None:
    """Kills it and its command, as the death of a host does."""
    for victim in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        victim.kill()


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} after 30 s")
        time.sleep(0.02)


def title(text: str) -> None:
    print(f"\n{text}")


def shell(line: str) -> None:
    print(f"   $ {line}")


def row(name: str, code: int, text: str) -> None:
    lines = textwrap.wrap(text, WIDTH - 28) or [""]
    print(f"   {name:<18} {code:>4}  {lines[0]}".rstrip())
    for line in lines[1:]:
        print(f"{'':28}{line}")


def main() -> int:
    # Print each line at once, also into a pipe or a file.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text stream unless somebody replaced it
    with tempfile.TemporaryDirectory(prefix="dislock-demo-") as folder, Postgres() as server:
        return Demo(ROOT / sys.argv[1], server, Path(folder)).show()


if __name__ == "__main__":
    sys.exit(main())
