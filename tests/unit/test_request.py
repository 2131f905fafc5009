"""What one request for locks is planned with, before any connection is opened."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    LockContext,
    ScheduleLock,
    acquire_locks,
    aio,
    run_with_locks,
    with_locks,
)
from dislock.drivers.clock import clock
from dislock.protocol.steps import Connect, Done, Wait
from dislock.request import Request


def make(**changes: Any) -> LockContext:
    """A context whose server refuses every connection at once."""
    values: dict[str, Any] = {
        "url": "postgresql://127.0.0.1:1/d",
        "table_parts": ["key_value"],
        "lock_key": "job",
        "owner": "host:1",
        "schedule": "0 3 * * *",
        "run_ttl_seconds": 60.0,
        "lease_interval_seconds": 10.0,
        "connect_timeout_seconds": 0.02,
    }
    return LockContext(**{**values, **changes})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The ranges that random delays were drawn from; each delay is the longest of its range."""
    ranges: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        ranges.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", uniform)
    return ranges


def delay(context: LockContext, strategies: tuple[str, ...] = ("schedule",)) -> float:
    """How long the first step of an acquisition waits."""
    begun = clock()
    step = next(Request(context, strategies, jitter=True).begin(begun).acquire())
    assert isinstance(step, Wait)
    return step.until - begun


def test_a_delay_is_drawn_from_zero_to_the_setting(drawn: list[tuple[float, float]]) -> None:
    assert delay(make(jitter_max_seconds=30.0)) == pytest.approx(30, abs=1)
    assert delay(make(jitter_max_seconds=30.0), ("lease",)) == pytest.approx(30, abs=1)
    assert drawn == [(0.0, 30.0)] * 2


def test_a_delay_never_reaches_the_next_tick(drawn: list[tuple[float, float]]) -> None:
    # Every ten minutes, less the tolerance; with nothing but a slot's end there is no gap to know.
    context = make(jitter_max_seconds=5000.0, schedule="*/10 * * * *", slot_tolerance_seconds=7.0)
    assert delay(context) == pytest.approx(593, abs=1)
    end = datetime.now(timezone.utc) + timedelta(days=1)
    assert delay(make(jitter_max_seconds=5000.0, next_run_time=end)) == pytest.approx(5000, abs=1)


def test_the_time_for_connecting_begins_after_the_delay(drawn: list[tuple[float, float]]) -> None:
    context = make(jitter_max_seconds=0.05, connect_timeout_seconds=5.0)
    steps = Request(context, ("lease",), jitter=True).begin().acquire()
    wait = next(steps)
    assert isinstance(wait, Wait)
    time.sleep(max(0.0, wait.until - clock()))
    connect = steps.send(Done())
    assert isinstance(connect, Connect)
    assert connect.by >= wait.until + 5.0


async def enter(lock: Any) -> None:
    async with lock:
        pytest.fail("a lock without a database")


ENTRANCES: dict[str, Callable[[LockContext], object]] = {
    "acquire_locks": lambda context: acquire_locks(context, ["lease"]).__enter__(),
    "with_locks": lambda context: with_locks(context, ["lease"])(lambda: None)(),
    "run_with_locks": lambda context: run_with_locks(["true"], context, ["lease"]),
    "aio.acquire_locks": lambda context: asyncio.run(enter(aio.acquire_locks(context, ["lease"]))),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_every_combined_entrance_delays(entrance: str, drawn: list[tuple[float, float]]) -> None:
    with pytest.raises(DatabaseUnavailableError):
        ENTRANCES[entrance](make(jitter_max_seconds=0.001))
    assert drawn == [(0.0, 0.001)]


def test_a_single_lock_does_not_delay(drawn: list[tuple[float, float]]) -> None:
    with pytest.raises(DatabaseUnavailableError):
        ScheduleLock(make(jitter_max_seconds=3600.0)).__enter__()
    with pytest.raises(DatabaseUnavailableError):
        asyncio.run(enter(aio.LeaseLock(make(jitter_max_seconds=3600.0))))
    assert {high for _, high in drawn} == {0.0}


def test_the_connection_names_the_lock() -> None:
    def name(context: LockContext) -> str:
        return Request(context, ("lease",)).database.targets[0].parameters["application_name"]

    assert name(make(lock_key="import")) == "dislock import"
    assert len(name(make(lock_key="x" * 500))) == 63
    assert name(make(url="postgresql://127.0.0.1:1/d?application_name=mine")) == "mine"


@pytest.mark.parametrize(
    ("supervised", "policy", "stop_after"),
    [(True, "terminate", 60 - 10 - 0.2), (True, "continue", 60.0), (False, "terminate", 60.0)],
)
def test_only_a_command_that_will_be_stopped_is_stopped_early(supervised: bool, policy: Any, stop_after: float) -> None:
    request = Request(make(lease_loss_policy=policy), ("lease",), supervised=supervised)
    assert request._terms is not None
    assert request._terms.stop_after == pytest.approx(stop_after)


def test_what_is_planned_is_the_lock_and_no_more() -> None:
    request = Request(make(), ["lease", "schedule", "lease"])
    assert request.strategies == ("schedule", "lease")


@pytest.mark.parametrize("strategies", [("schedule",), ("lease",)])
def test_a_slot_consumed_by_success_needs_both_strategies(strategies: tuple[str, ...]) -> None:
    context = make(slot_consumed_by="success")
    for use in (acquire_locks, aio.acquire_locks):
        with pytest.raises(ConfigurationError, match="needs the strategies schedule and lease"):
            use(context, strategies)
    with pytest.raises(ConfigurationError, match="needs the strategies schedule and lease"):
        run_with_locks(["true"], context, strategies)
    assert acquire_locks(context, ("schedule", "lease"))


@pytest.mark.parametrize(("variable", "value"), [("PGTZ", "Asia/Tokyo"), ("PGOPTIONS", "-c TimeZone=Asia/Tokyo")])
def test_a_zone_of_the_host_does_not_decide_the_slot(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=f"{variable} .*set time_zone"):
        Request(make(), ("schedule",))
    assert Request(make(time_zone="UTC"), ("schedule",))
    assert Request(make(), ("lease",)), "a lease has no zone"
