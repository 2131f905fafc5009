"""The ledger as a program: trouble for a while, a verdict, a summary."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.faults.ledger.check import Verdict, check
from tests.faults.ledger.record import Ledger
from tests.faults.ledger.troubles import Troubles
from tests.faults.ledger.world import World


@dataclass(frozen=True)
class Report:
    seed: int
    seconds: float
    replication: str
    verdict: Verdict
    faults: Counter[str]
    wrappers: int

    def __str__(self) -> str:
        counts = self.verdict.counts
        lines = [
            f"seed {self.seed}, {self.seconds:g} s, {self.replication}, {self.wrappers} wrappers, "
            f"{sum(self.faults.values())} faults:",
            *(f"  {number:4} {kind}" for kind, number in sorted(self.faults.items())),
            f"runs {counts['runs']}, of which came to their own end {counts['done']}; skips {counts['skipped']}; "
            f"losses (75) {counts['lost']}; failures (1) {counts['failed']}; "
            f"gave up waiting (1) {counts['waited']}; "
            f"terminated {counts['terminated']}; killed {counts['killed']}",
            f"ticks sealed {counts['sealed']}; sealed again after a failover {len(self.verdict.sealed_again)}",
            f"acquisitions that a failover lost while they ran: {len(self.verdict.forgotten)}; "
            f"overlaps that came of a failover (the tokens reveal each): {len(self.verdict.revealed)}",
            "overlaps of a run that was paused or killed, or lost its row by force or by the clock "
            f"(the tokens reveal each): {len(self.verdict.excused)}",
            f"violations: {len(self.verdict.violations)}",
            *(f"  {violation}" for violation in self.verdict.violations),
        ]
        return "\n".join(lines)


def run(
    folder: Path, seconds: float, seed: int, *, synchronous: bool = True, wrappers: int = 20, hosts: int = 5
) -> Report:
    """One ledger in an empty folder, made and checked."""
    world = World(folder, seed, synchronous=synchronous, wrappers=wrappers, hosts=hosts)
    with world.up(), Troubles(world, seed):
        world.work(seconds)
    return judge(folder, seconds, seed)


def judge(folder: Path, seconds: float = 0.0, seed: int = 0) -> Report:
    ledger = Ledger.read(folder)
    faults = Counter(fault.kind for fault in ledger.faults)
    replication = "no failover"
    if ledger.failovers:
        replication = f"{'' if ledger.failovers[0].synchronous else 'a'}synchronous replication"
    return Report(seed, seconds, replication, check(ledger), faults, len(ledger.wrappers))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ledger", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--asynchronous", action="store_true", help="the primary does not wait for its standby")
    parser.add_argument("--folder", type=Path, help="where the files go, and stay; it must be empty")
    parser.add_argument("--check", type=Path, help="only check the files in this folder")
    given = parser.parse_args()
    if given.check:
        report = judge(given.check)
    elif given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
        report = run(given.folder, given.seconds, given.seed, synchronous=not given.asynchronous)
    else:
        with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
            report = run(Path(folder), given.seconds, given.seed, synchronous=not given.asynchronous)
    print(report)
    return 1 if report.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
