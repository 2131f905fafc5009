"""A synchronous leader that has lost its standby, or its lead: what it says is not relied on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.patroni import PATIENCE, Cluster
from tests.faults.conftest import BOTH, LEASE, Start, Table
from tests.faults.wrapper import alive
from tests.support.wait import until

pytestmark = pytest.mark.integration
BRIEF = {"LOCK_CONNECT_TIMEOUT_SECONDS": 4}
LONG = {**LEASE, "RUN_LOCK_TTL_SECONDS": 60}


@pytest.fixture
def strict(cluster: Cluster) -> Iterator[Cluster]:
    """Without its standby the leader confirms nothing, ever."""
    if not cluster.synchronous:
        pytest.skip("replication is asynchronous")
    cluster.configure(synchronous_mode_strict=True)
    yield cluster
    cluster.configure(synchronous_mode_strict=None)
    cluster.heal()


def test_without_a_standby_nothing_is_taken_kept_or_freed_in_silence(
    strict: Cluster, start: Start, table: Table
) -> None:
    """Each ends at its own deadline, with one line that names the cause."""
    kept = start(strict.url, LEASE, {"LOCK_KEY": "kept", "RUN_LOCK_TTL_SECONDS": 9}).up()
    freed = start(strict.url, LONG, {"LOCK_KEY": "freed"}).up()
    strict.other(strict.lead()).kill()
    claims = [start(strict.url, settings, BRIEF) for settings in (LEASE, {**BOTH, "LOCK_KEY": "both"})]
    freed.tell(4)
    for claim in claims:
        code, err = claim.ended()
        assert code == 1
        assert "SyncRep" in err
        assert not claim.started
    code, err = freed.ended()
    assert (code, err.count("\n")) == (4, 1)
    assert "SyncRep" in err
    code, err = kept.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "SyncRep" in err
    assert not alive(kept.command)


def test_an_old_leader_that_wakes_up_gives_no_lock(cluster: Cluster, start: Start, table: Table) -> None:
    """Its machine stood still until the other node led. For a moment both take connections, and one of them counts."""
    if not cluster.synchronous:
        pytest.skip("replication is asynchronous")
    old = cluster.lead()
    run = start(cluster.url, LONG).up()
    old.pause()
    until(lambda: cluster.other(old).ask("/leader")[0] == 200, PATIENCE, "another leader")
    new = Table(cluster.other(old).url)
    end = new.ends()
    until(lambda: new.renewed(end), PATIENCE, "a renewal at the new leader")
    # Its Patroni stays where it is, so the split lasts as long as this test wants; then a watchdog resets the machine.
    old.resume_server()
    claim = start(old.url, LEASE, {"LOCK_KEY": "other"}, BRIEF)
    code, err = claim.ended()
    assert code == 1
    assert "SyncRep" in err
    assert not claim.started
    # Who asks for the key that is held is refused by either of them.
    for url in (old.url, cluster.other(old).url):
        refused = start(url, LEASE)
        refused.ended()
        assert not refused.started
    old.kill()
    cluster.heal()
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal in the healed cluster")
    assert run.tell(4).ended() == (4, "")
    assert table.live() == {}
