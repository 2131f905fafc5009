"""Failovers in a row, each with twenty wrappers at work: one line for each, and the violations if there are any."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.cluster.failover import KINDS, Report, fail_over
from tests.cluster.patroni import Cluster
from tests.cluster.routes import routes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--cluster", type=Path, default=os.environ.get("DISLOCK_TEST_CLUSTER"))
    parser.add_argument("--failovers", type=int, default=1, help="how many of each kind")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; may be given again")
    parser.add_argument("--folder", type=Path, help="where the records go, and stay")
    given = parser.parse_args()
    if given.cluster is None:
        parser.error("DISLOCK_TEST_CLUSTER does not name the folder of a cluster")
    cluster = Cluster(given.cluster)
    cluster.heal()
    usual = ["SIGKILL", "switchover", "pause"] if cluster.synchronous else ["SIGKILL, standby lags"]
    kinds = given.kind or usual
    records = given.folder or Path(tempfile.mkdtemp(prefix="failovers-"))
    print(f"records in {records}; replication is {'' if cluster.synchronous else 'a'}synchronous\n\n{Report.HEAD}")
    violations: list[str] = []
    with routes(cluster) as ways:
        for number in range(given.failovers):
            for kind in kinds:
                folder = records / f"{number:02}-{kind.replace(', ', '-').replace(' ', '-')}"
                report = fail_over(cluster, kind, ways, folder, seed=number)
                print(report, flush=True)
                violations += report.violations
    print("", *violations, sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
