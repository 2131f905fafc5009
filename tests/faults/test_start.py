"""Between having the lock and starting the command: nothing is begun on a lease whose time is up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dislock import LeaseLock, LeaseLostError, LockContext, Loss
from dislock.command import run_held
from dislock.holding import Holding
from dislock.process.signals import Signals
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.steps import Steps
from tests.faults.conftest import Table
from tests.faults.wrapper import PATIENCE
from tests.support.wait import until

pytestmark = pytest.mark.integration


@pytest.fixture
def context(database_url: str) -> LockContext:
    return LockContext(
        url=database_url,
        table_parts=["key_value"],
        lock_key="job",
        owner="host:1",
        run_ttl_seconds=1.0,
        lease_interval_seconds=0.3,
        kill_grace_seconds=0.0,
    )


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The renewing thread gets no time until this is set, as on a machine that has too much to do."""
    keep, over = Acquisition.keep, threading.Event()

    def keep_late(self: Acquisition) -> Steps[Loss | None]:
        over.wait(PATIENCE)
        return (yield from keep(self))

    monkeypatch.setattr(Acquisition, "keep", keep_late)
    return over


def test_a_command_is_not_started_on_a_lease_that_is_over(
    context: LockContext, table: Table, tmp_path: Path, busy: threading.Event
) -> None:
    holding = Holding(context, ["lease"], supervised=True)
    assert holding.acquire()
    until(lambda: not table.live(), what="the end of the row")
    # For the release, which waits for the thread; the start comes first.
    threading.Timer(1.0, busy.set).start()
    with Signals() as signals:
        assert run_held(holding, ["touch", str(tmp_path / "ran")], {b"PATH": b"/usr/bin:/bin"}, signals) == 75
    assert not (tmp_path / "ran").exists()


def test_a_block_is_told_at_its_entry(
    context: LockContext, table: Table, monkeypatch: pytest.MonkeyPatch, busy: threading.Event
) -> None:
    acquire = Holding.acquire

    def acquire_and_be_held_up(self: Holding) -> bool:
        held = acquire(self)
        until(lambda: not table.live(), what="the end of the row")
        return held

    monkeypatch.setattr(Holding, "acquire", acquire_and_be_held_up)
    with pytest.raises(LeaseLostError), LeaseLock(context) as session:
        assert session.lease_lost is not None
        assert session.lease_lost.is_set()
        busy.set()
