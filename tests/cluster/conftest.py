"""The cluster, well before each test and after it, and the ways to its leader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.failover import furnish
from tests.cluster.patroni import Cluster
from tests.cluster.routes import routes
from tests.faults.conftest import Table, start
from tests.support.need import need, need_program

__all__ = ["start"]


@pytest.fixture(scope="session")
def whole_cluster() -> Cluster:
    folder = os.environ.get("DISLOCK_TEST_CLUSTER")
    need(folder, "DISLOCK_TEST_CLUSTER does not name the folder of a Patroni cluster: see tests/cluster/__init__.py")
    need_program("patroni")
    assert folder is not None
    return Cluster(Path(folder))


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """In order, with an empty lock table."""
    whole_cluster.heal()
    furnish(whole_cluster)
    yield whole_cluster
    whole_cluster.heal()


@pytest.fixture(scope="session")
def ways(whole_cluster: Cluster) -> Iterator[dict[str, str]]:
    with routes(whole_cluster) as found:
        yield found


@pytest.fixture
def table(cluster: Cluster) -> Table:
    """The lock table at whoever takes writes."""
    return Table(cluster.url)
