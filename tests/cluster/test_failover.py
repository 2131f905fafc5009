"""The leader is killed, or hands over, with twenty wrappers in all phases at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.failover import Report, fail_over
from tests.cluster.patroni import Cluster

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("kind", ["SIGKILL", "switchover"])
def test_nobody_twice_and_no_exit_code_lies(
    cluster: Cluster, ways: dict[str, str], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fail_over(cluster, kind, ways, tmp_path / "records")
    with capsys.disabled():
        print(f"\n{Report.HEAD}\n{report}")
    assert not report.violations
    assert not report.revealed
    # Every one that held a lease with a TTL above the outage went on, and ended with its command's own code.
    assert report.counts["held on"] == 6
    assert report.counts["forgotten"] == 0
