"""The demonstration: a job on several hosts, a lease, its loss, and the exit codes, on a PostgreSQL of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from build.common.postgres import Postgres
from build.common.tools import ROOT

WIDTH = 100
TABLE = "CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL)"
HOSTS = 5


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

    def sql(self, statement: str) -> str:
        return self._server.program("psql", "-X", "-At", "-d", self._server.url(), "-c", statement).strip()

    def start(self, settings: dict[str, str], command: Sequence[str], gate: int | None = None) -> subprocess.Popen[str]:
        """Starts the command under dislock; with a gate, as soon as its other end is closed."""
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        line = [str(self._program), "DATABASE_URL", *command]
        if gate is not None:
            line = ["/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "gate", *line]
        return subprocess.Popen(
            line,
            env={**environ, "DATABASE_URL": self._server.url(), **settings},
            cwd=self._folder,
            stdin=subprocess.DEVNULL if gate is None else gate,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, settings: dict[str, str], command: Sequence[str]) -> Ended:
        return ended(self.start(settings, command))

    def expect(self, holds: bool, sentence: str) -> None:
        print(f"   {'->' if holds else '!! NOT AS PROMISED:'} {sentence}")
        self._surprises += not holds

    def hosts(self) -> None:
        # Half a day away, so that no tick comes while this runs.
        schedule = f"0 {(datetime.now(timezone.utc).hour + 12) % 24} * * *"
        title(f"1  {HOSTS} hosts start one daily job at the same moment")
        shell(f"LOCK_KEY=report CRON_SCHEDULE='{schedule}' dislock DATABASE_URL ./report")
        gate, release = os.pipe()
        settings = {"LOCK_KEY": "report", "CRON_SCHEDULE": schedule}
        job = ["/bin/sh", "-c", 'sleep 0.2; echo "the report, for the tick of $DISLOCK_SLOT"']
        started = [self.start(settings, job, gate) for _ in range(HOSTS)]
        os.close(gate)
        os.close(release)
        results = [ended(process) for process in started]
        for number, result in enumerate(results, 1):
            what = result.out.strip() or result.err.strip() or "silent: another host has this tick"
            row(f"host {number}", result.code, what)
        runs = sum(bool(result.out) for result in results)
        self.expect(
            runs == 1 and not any(r.code for r in results),
            f"it ran {'once' if runs == 1 else f'{runs} times'}, and nobody failed",
        )

    def lease(self) -> None:
        title("2  One run at a time, for as long as it takes")
        settings = {"LOCK_KEY": "import", "LOCK_STRATEGY": "lease", "RUN_LOCK_TTL_SECONDS": "5"}
        shell("LOCK_KEY=import LOCK_STRATEGY=lease RUN_LOCK_TTL_SECONDS=5 dislock DATABASE_URL ./import")
        job = ["/bin/sh", "-c", "echo imported; while [ -e busy ]; do sleep 0.05; done"]
        (self._folder / "busy").touch()
        first = self.start(settings, job)
        self._row_of("cronjob-lock:lease:import")
        second = self.run(settings, job)
        (self._folder / "busy").unlink()
        done = ended(first)
        third = self.run(settings, job)
        row("host 1", done.code, f"{done.out.strip()}, and took its time")
        row("host 2", second.code, second.out.strip() or "silent: host 1 was still running")
        row("host 3", third.code, f"{third.out.strip()}, after host 1 had ended")
        fair = (done.out, second.out, third.out) == ("imported\n", "", "imported\n")
        self.expect(fair and not done.code + second.code + third.code, "never two at once, and free again right after")

    def loss(self) -> None:
        title("3  The lease is taken away while the job runs")
        settings = {"LOCK_KEY": "sync", "LOCK_STRATEGY": "lease", "RUN_LOCK_TTL_SECONDS": "3"}
        shell("LOCK_KEY=sync LOCK_STRATEGY=lease RUN_LOCK_TTL_SECONDS=3 dislock DATABASE_URL ./sync")
        job = ["/bin/sh", "-c", "exec 2>/dev/null; trap 'echo told to stop; exit 0' TERM; while :; do sleep 0.05; done"]
        holder = self.start(settings, job)
        self._row_of("cronjob-lock:lease:sync")
        self.sql("UPDATE key_value SET value = 'intruder:1' WHERE key = 'cronjob-lock:lease:sync'")
        result = ended(holder)
        row("the job", 0, result.out.strip())
        row("dislock", result.code, result.err.strip())
        self.expect(
            (result.code, result.out) == (75, "told to stop\n"), "no success is reported on a lock that was lost"
        )

    def exits(self) -> None:
        title("4  What cron or Kubernetes sees")
        settings = {"LOCK_STRATEGY": "lease"}
        nowhere = "postgresql://postgres@127.0.0.1:1/postgres"
        cases: list[tuple[str, int, dict[str, str], list[str]]] = [
            ("./job succeeds", 0, {}, ["true"]),
            ("./job fails with 7", 7, {}, ["/bin/sh", "-c", "exit 7"]),
            ("./job dies of SIGTERM", 143, {}, ["/bin/sh", "-c", "kill -TERM $$"]),
            ("no such command", 127, {}, ["./no-such-job"]),
            ("a setting is wrong", 2, {"RUN_LOCK_TTL_SECONDS": "soon"}, ["true"]),
            ("no database", 1, {"DATABASE_URL": nowhere, "LOCK_CONNECT_TIMEOUT_SECONDS": "0.5"}, ["true"]),
        ]
        right = True
        for number, (name, code, more, command) in enumerate(cases):
            result = self.run({"LOCK_KEY": f"exit-{number}", **settings, **more}, command)
            row(name, result.code, result.err.strip())
            right = right and result.code == code
        self.expect(right, "the command's own code, or one that says what went wrong")

    def _row_of(self, key: str) -> None:
        """Waits until a live row shows that the lock is held."""
        deadline = time.monotonic() + 30
        while not self.sql(f"SELECT 1 FROM key_value WHERE key = '{key}' AND expire_at > now()"):  # noqa: S608 - our keys
            if time.monotonic() > deadline:
                raise TimeoutError(f"no row {key} after 30 s")
            time.sleep(0.02)

    def show(self) -> int:
        self.sql(TABLE)
        version = subprocess.run(
            [self._program, "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        began = time.monotonic()
        print(f"{version} ({self._program.relative_to(ROOT)}) on PostgreSQL {self.sql('SHOW server_version')}")
        print(f"{'':24}exit  output")
        for scene in (self.hosts, self.lease, self.loss, self.exits):
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


def title(text: str) -> None:
    print(f"\n{text}")


def shell(line: str) -> None:
    print(f"   $ {line}")


def row(name: str, code: int, text: str) -> None:
    lines = textwrap.wrap(text, WIDTH - 32) or [""]
    print(f"   {name:<22} {code:>4}  {lines[0]}".rstrip())
    for line in lines[1:]:
        print(f"{'':32}{line}")


def main() -> int:
    # Each line as it comes, also into a pipe or a file.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text stream unless somebody replaced it
    with tempfile.TemporaryDirectory(prefix="dislock-demo-") as folder, Postgres() as server:
        return Demo(ROOT / sys.argv[1], server, Path(folder)).show()


if __name__ == "__main__":
    sys.exit(main())
