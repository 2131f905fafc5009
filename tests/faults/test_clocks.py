"""Wrong clocks on host and server: the slot is the database's business, and a lease is nobody's wall clock's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from tests.faults.conftest import LEASE, SLOT, Start, Table, furnish
from tests.faults.wrapper import PATIENCE, Run, alive
from tests.support.clock import Settable, shifted
from tests.support.postgres import Postgres
from tests.support.wait import until

pytestmark = pytest.mark.integration
TICK = datetime(2026, 3, 10, 3, 0, tzinfo=timezone.utc)
#: Five minutes off must be well below half the tolerance, beyond which there is a warning.
DAILY = {**SLOT, "CRON_SCHEDULE": "0 3 * * *", "LOCK_SLOT_TOLERANCE_SECONDS": 720}


def from_now(moment: datetime) -> float:
    return (moment - datetime.now(timezone.utc)).total_seconds()


@contextmanager
def server_with(clock: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A server of one's own with another clock."""
    own = Postgres()
    try:
        start_with(own, clock, monkeypatch)
        furnish(own)
        yield own
    finally:
        own.__exit__(None, None, None)


def start_with(server: Postgres, clock: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for name, value in clock.items():
            patched.setenv(name, value)
        server.start()


def database_time(table: Table) -> datetime:
    ((now,),) = table.ask("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def host_off_by(seconds: float, table: Table) -> dict[str, str]:
    """A host whose clock says the same as the database's, but for so many seconds."""
    return shifted((database_time(table) - datetime.now(timezone.utc)).total_seconds() + seconds)


def test_an_early_host_and_a_late_one_start_one_tick_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The early one's cron fires five minutes before three by the database's clock: it is the run of three o'clock."""
    with server_with(shifted(from_now(TICK - timedelta(minutes=5))), monkeypatch) as server:
        table = Table(server.url())
        early = start(server.url(), DAILY, host_off_by(300, table)).up()
        assert early.told["DISLOCK_SLOT"] == "2026-03-10T03:00:00Z"
        assert table.ends("schedule") == TICK + timedelta(days=1), "not at three, or the late one would run as well"
        assert early.tell().ended() == (0, "")
        server.stop("fast")
        # The same server, ten minutes later.
        start_with(server, shifted(from_now(TICK + timedelta(minutes=5))), monkeypatch)
        late = start(server.url(), DAILY, host_off_by(-300, table))
        assert late.ended() == (0, "")
        assert not late.started
        server.stop("fast")
        # The next day, early again: yesterday's row must not refuse this tick.
        start_with(server, shifted(from_now(TICK + timedelta(days=1, minutes=-5))), monkeypatch)
        again = start(server.url(), DAILY, host_off_by(300, table)).up()
        assert again.told["DISLOCK_SLOT"] == "2026-03-11T03:00:00Z"
        assert again.tell().ended() == (0, "")


@pytest.mark.parametrize(("off", "word"), [(7200.0, "ahead of"), (-7200.0, "behind")])
def test_a_host_that_is_hours_off_is_warned_and_takes_the_databases_slot(
    start: Start, database_url: str, table: Table, off: float, word: str
) -> None:
    run = start(database_url, SLOT, shifted(off)).up()
    year = database_time(table).year
    assert run.told["DISLOCK_SLOT"] == f"{year}-01-01T00:00:00Z"
    code, err = run.tell().ended()
    assert (code, err.count("\n")) == (0, 1)
    assert word in err


@pytest.mark.parametrize("off", [86400.0, -86400.0])
def test_a_lease_does_not_care_for_the_hosts_wall_clock(
    start: Start, database_url: str, table: Table, off: float
) -> None:
    run = start(database_url, LEASE, shifted(off)).up()
    end = table.ends()
    until(lambda: table.renewed(end), PATIENCE, "a renewal")
    assert table.ends() - database_time(table) < timedelta(seconds=7)
    assert run.tell().ended() == (0, "")
    assert table.live() == {}


def test_a_hosts_clock_that_is_set_in_mid_run_changes_nothing(
    start: Start, database_url: str, table: Table, clock: Settable
) -> None:
    run = start(database_url, LEASE, clock.environment).up()
    for offset in ("+3600", "-3600"):
        clock.set(offset)
        end = table.ends()
        until(partial(table.renewed, end), PATIENCE, "a renewal")
    assert run.tell().ended() == (0, "")
    assert table.live() == {}


@pytest.fixture
def clock() -> Settable:
    return Settable()


def test_a_databases_clock_that_is_set_forward_ends_the_lease_at_once(
    start: Start, clock: Settable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has ended by the only clock that counts, so anybody may take it: the holder stops at its next word."""
    with server_with(clock.environment, monkeypatch) as server:
        table = Table(server.url())
        run = start(server.url(), {**LEASE, "RUN_LOCK_TTL_SECONDS": 600}).up()
        clock.set("+3600")
        code, err = run.ended()
        assert (code, err.count("\n")) == (75, 1)
        assert "expired by the database's clock" in err
        assert not alive(run.command)
        after = start(server.url(), LEASE, {"RUN_LOCK_TTL_SECONDS": 20}).up()
        assert after.told["DISLOCK_FENCING_TOKEN"] > run.told["DISLOCK_FENCING_TOKEN"]
        assert table.live() == {"lease": after.told["DISLOCK_OWNER"]}
        assert after.tell().ended() == (0, "")


def test_a_databases_clock_that_is_set_back_keeps_the_lease_and_the_order_of_tokens(
    start: Start, clock: Settable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_with(clock.environment, monkeypatch) as server:
        table = Table(server.url())
        run = start(server.url(), {**LEASE, "RUN_LOCK_TTL_SECONDS": 30}).up()
        renewed = server_renewals(table)
        clock.set("-5")
        until(lambda: server_renewals(table) != renewed, PATIENCE, "a renewal")
        refused = start(server.url(), LEASE)
        assert refused.ended() == (0, "")
        assert not refused.started
        assert run.tell().ended() == (0, "")
        # The row was freed at a moment that has not come yet by the clock that was set back: within five seconds.
        after = until(lambda: attempt(start, server), PATIENCE, "a run after the clock has caught up")
        assert after is not None
        assert after.told["DISLOCK_FENCING_TOKEN"] > run.told["DISLOCK_FENCING_TOKEN"]
        assert after.tell().ended() == (0, "")


def attempt(start: Start, server: Postgres) -> Run | None:
    """A run, or None when it was refused in silence."""
    run = start(server.url(), LEASE)
    until(lambda: run.started or run.process.poll() is not None, PATIENCE, "a run or a refusal")
    if run.started:
        return run
    assert run.ended() == (0, "")
    return None


def server_renewals(table: Table) -> object:
    return table.ask("SELECT xmin::text FROM key_value WHERE key LIKE '%%:lease:%%'")
