"""What is tested in memory, beside a real server: the same answers, and neither touches the other."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Any

import psycopg
import pytest

from dislock import LeaseLock, LeaseLostError, LockNotAcquiredError, acquire_locks
from dislock.testing import in_memory
from tests.integration.library.conftest import MakeContext
from tests.support.wait import until

pytestmark = pytest.mark.integration


def test_a_lock_of_a_real_server_is_not_touched(make: MakeContext, db: psycopg.Connection[Any]) -> None:
    def ends() -> datetime:
        row = db.execute("SELECT expire_at FROM key_value WHERE expire_at > clock_timestamp()").fetchone()
        assert row is not None
        return row[0]  # type: ignore[no-any-return]

    context = make(lease_interval_seconds=0.05)
    with LeaseLock(context) as real:
        with in_memory() as server, pytest.raises(LeaseLostError), LeaseLock(context) as held:
            assert server.holder("job") == "host:1"
            server.advance(86400)
            held.check()
        before = ends()
        until(lambda: ends() > before, what="a renewal on the real server")
        real.check()
    with in_memory():
        outside = db.execute("SELECT count(*) FROM key_value").fetchone()
        with acquire_locks(make(lock_key="another"), ("schedule", "lease")):
            assert db.execute("SELECT count(*) FROM key_value").fetchone() == outside


@pytest.mark.parametrize("strategies", [("schedule",), ("lease",), ("schedule", "lease"), ("advisory",)])
def test_refusals_read_the_same(make: MakeContext, strategies: Any) -> None:
    def refusal(*, memory: bool) -> tuple[type, str | None]:
        with in_memory() if memory else nullcontext(), acquire_locks(make(), strategies):  # noqa: SIM117 - two locks
            with pytest.raises(LockNotAcquiredError) as error, acquire_locks(make(owner="host:2"), strategies):
                pass
        return type(error.value), error.value.holder

    assert refusal(memory=True) == refusal(memory=False)
