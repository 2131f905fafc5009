"""After a suspend, in which only the clock of the deadlines went on, a loss is noticed at once."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from dislock import LeaseLock, LeaseLostError, LossReason, aio
from dislock.drivers import clock as clocks
from tests.integration.library.conftest import MakeContext

pytestmark = pytest.mark.integration
#: Longer than any wait here: the loss must be noticed long before the next renewal is due.
CALM = {"run_ttl_seconds": 600.0, "lease_interval_seconds": 200.0}


@pytest.fixture
def suspend(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Whatever is put into it is added to the clock by which deadlines are kept; what threads sleep on stays."""
    ahead: list[float] = []
    real = clocks.clock

    def moved() -> float:
        return real() + sum(ahead)

    for name, module in list(sys.modules.items()):
        if name.startswith("dislock") and getattr(module, "clock", None) is real:
            monkeypatch.setattr(module, "clock", moved)
    return ahead


def test_in_a_thread(make: MakeContext, suspend: list[float]) -> None:
    with pytest.raises(LeaseLostError) as caught, LeaseLock(make(**CALM)) as session:
        suspend.append(3600)
        began = time.monotonic()
        assert session.lease_lost is not None
        assert session.lease_lost.wait(20)
        # Not after the rest of a pause of 200 s.
        assert time.monotonic() - began < 15
    assert caught.value.reason is LossReason.UNCONFIRMED


def test_in_an_event_loop(make: MakeContext, suspend: list[float]) -> None:
    async def main() -> None:
        async with aio.LeaseLock(make(**CALM)) as session:
            suspend.append(3600)
            assert session.lease_lost is not None
            await asyncio.wait_for(session.lease_lost.wait(), 20)

    with pytest.raises(LeaseLostError):
        asyncio.run(main())
