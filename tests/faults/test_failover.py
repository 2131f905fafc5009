"""A primary that dies, a standby that is promoted, and a connection string with both."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import psycopg
import pytest

from tests.conftest import KEY_VALUE
from tests.faults.conftest import BOTH, LEASE, Start, Table
from tests.faults.wrapper import PATIENCE, alive
from tests.support.replicas import Pair
from tests.support.wait import until

pytestmark = pytest.mark.integration
LONG = {**LEASE, "RUN_LOCK_TTL_SECONDS": 40}


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as both:
        with psycopg.connect(both.primary.url(), autocommit=True) as connection:
            connection.execute(KEY_VALUE)
        both.catch_up()
        yield both


def test_a_lease_lives_through_a_failover_in_silence(start: Start, pair: Pair) -> None:
    # Seldom renewed, so that what the standby has is what the holder knows.
    run = start(pair.url(), {**LONG, "LOCK_LEASE_INTERVAL": 5}).up()
    pair.catch_up()
    fail_over(pair)
    table = Table(pair.standby.url())
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal at the new primary")
    assert table.live() == {"lease": run.told["DISLOCK_OWNER"]}
    refused = start(pair.url(), LEASE)
    assert refused.ended() == (0, "")
    assert not refused.started
    assert run.tell(4).ended() == (4, "")
    assert table.live() == {}


def fall_behind(pair: Pair) -> None:
    """From now on the standby gets nothing more."""
    standby = Table(pair.standby.url())
    standby.ask("ALTER SYSTEM SET primary_conninfo = ''")
    standby.ask("SELECT pg_reload_conf()")
    until(lambda: not standby.ask("SELECT 1 FROM pg_stat_wal_receiver"), PATIENCE, "the end of the replication")


def fail_over(pair: Pair) -> None:
    pair.primary.stop("immediate")
    pair.standby.promote()


def test_a_standby_that_lacks_the_row_ends_the_command(start: Start, pair: Pair) -> None:
    """What a lagging standby never got is lost for good: the holder learns it from its first word with it."""
    fall_behind(pair)
    run = start(pair.url(), LONG).up()
    fail_over(pair)
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "removed" in err
    assert not alive(run.command)
    after = start(pair.url(), LONG).up()
    assert after.told["DISLOCK_FENCING_TOKEN"] > run.told["DISLOCK_FENCING_TOKEN"]
    assert after.tell().ended() == (0, "")


def test_a_standby_that_lacks_the_last_renewals_is_noticed(start: Start, pair: Pair) -> None:
    """The row is ours, and older than what was confirmed: the end is the safe thing to do."""
    run = start(pair.url(), LONG).up()
    pair.catch_up()
    fall_behind(pair)
    primary = Table(pair.primary.url())
    end = primary.ends()
    until(lambda: primary.renewed(end), PATIENCE, "a renewal that the standby lacks")
    fail_over(pair)
    code, err = run.ended()
    assert (code, err.count("\n")) == (75, 1)
    assert "by a failover" in err
    assert not alive(run.command)
    assert Table(pair.standby.url()).live() == {"lease": run.told["DISLOCK_OWNER"]}, "nobody else begins meanwhile"


def test_a_start_waits_for_the_promotion(start: Start, pair: Pair) -> None:
    """Between the death of the primary and the promotion there is a standby that refuses, and that is not the end."""
    pair.primary.stop("immediate")
    hasty = start(pair.standby.url(), LEASE, {"LOCK_CONNECT_TIMEOUT_SECONDS": 1})
    code, err = hasty.ended()
    assert (code, err.count("\n")) == (1, 1)
    assert "target_session_attrs" in err
    assert not hasty.started
    run = start(pair.url(), BOTH, {"LOCK_CONNECT_TIMEOUT_SECONDS": 60, "RUN_LOCK_TTL_SECONDS": 30})
    until(lambda: psutil.Process(run.pid).num_threads() > 1, PATIENCE, "the first tries")
    pair.standby.promote()
    run.up()
    assert set(Table(pair.standby.url()).live()) == {"schedule", "lease"}
    assert run.tell().ended() == (0, "")
