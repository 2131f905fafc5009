"""Promises of the design that hold between the modules: what a lock is planned with, and what importing costs."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from dislock import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LeaseLostError,
    LockContext,
    LockNotAcquiredError,
    Loss,
    LossReason,
    ScheduleLock,
    SlotOverError,
    UnknownOutcomeError,
    acquire_locks,
    aio,
    run_with_locks,
    with_locks,
)
from dislock.drivers.clock import clock
from dislock.drivers.connections import options
from dislock.protocol.statements import ClaimLease, ClaimSlot, Inspect, ReadClock, to_micros
from dislock.protocol.steps import Answer, Connect, Done, Execute, Step, Wait
from dislock.request import Request
from tests.unit.protocol.test_acquisition import (
    BROKEN,
    HELD,
    NONE,
    NOW,
    REFUSED,
    SLOT,
    T0,
    TERMS,
    Hourly,
    Script,
    plan,
    rows,
    slot_plan,
)


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


# Startup jitter


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


# Counting time, and connections


def test_time_is_counted_on_a_clock_that_runs_on_in_a_suspended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {7: 123.0}.__getitem__, raising=False)
    assert clock() == 123.0


def test_where_there_is_no_such_clock_it_is_one_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 321.0)
    assert clock() == 321.0


def test_connections_leave_nothing_open_and_nothing_prepared() -> None:
    opened = options({"host": "h"}, 3.5)
    assert opened["autocommit"] is True
    assert opened["prepare_threshold"] is None
    # libpq counts whole seconds, and does not do what it says below two.
    assert opened["connect_timeout"] == "4"
    assert options({}, 0.1)["connect_timeout"] == "2"
    assert options({"connect_timeout": "9"}, 0.1)["connect_timeout"] == "9"


def test_the_connection_names_the_lock() -> None:
    def name(context: LockContext) -> str:
        return Request(context, ("lease",)).database.targets[0].parameters["application_name"]

    assert name(make(lock_key="import")) == "dislock import"
    assert len(name(make(lock_key="x" * 500))) == 63
    assert name(make(url="postgresql://127.0.0.1:1/d?application_name=mine")) == "mine"


# The stop must fit in where something is stopped, and only there


@pytest.mark.parametrize(
    ("supervised", "policy", "stop_after"),
    [(True, "terminate", 60 - 10 - 0.2), (True, "continue", 60.0), (False, "terminate", 60.0)],
)
def test_only_a_command_that_will_be_stopped_is_stopped_early(supervised: bool, policy: Any, stop_after: float) -> None:
    planned = Request(make(lease_loss_policy=policy), ("lease",), supervised=supervised)
    assert planned._terms is not None
    assert planned._terms.stop_after == pytest.approx(stop_after)


# Errors


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError(Loss(LossReason.TAKEN, "the lease k was lost", 3.0)),
        LockNotAcquiredError("held", key="k", holder="h:1", expires_at=datetime(2026, 1, 1, tzinfo=timezone.utc)),
        SlotOverError("over", key="k"),
        ConfigurationError("wrong"),
        DatabaseUnavailableError("away"),
        UnknownOutcomeError("unknown"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: DislockError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


# Importing

#: What Python lacks on Windows, of what this package uses.
POSIX_ONLY = """
import os, signal, time
import psycopg
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGKILL", "SIGCONT", "SIGCHLD", "SIG_BLOCK",
             "SIG_SETMASK", "SIG_UNBLOCK", "pthread_sigmask", "pthread_kill", "sigwait", "sigwaitinfo", "sigpending"):
    vars(signal).pop(name, None)
for name in ("environb", "fork", "killpg", "setpgid", "getsid", "getpgrp", "tcgetpgrp", "waitid", "uname", "O_NOCTTY"):
    vars(os).pop(name, None)
for name in ("clock_gettime", "CLOCK_BOOTTIME"):
    vars(time).pop(name, None)
import dislock, dislock.aio
assert all(getattr(dislock, name) for name in dislock.__all__)
"""


def test_the_library_imports_anywhere() -> None:
    done = subprocess.run([sys.executable, "-c", POSIX_ONLY], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


LOCKING = """
try:
    with dislock.LeaseLock(dislock.LockContext(
        url="postgresql://127.0.0.1:1/d", table_parts=["t"], lock_key="k", owner="o",
        run_ttl_seconds=5, lease_interval_seconds=1, connect_timeout_seconds=0.5)):
        raise SystemExit("entered")
except dislock.DatabaseUnavailableError as error:
    assert "refused" in str(error), error
"""


def test_the_locks_need_no_signals() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POSIX_ONLY + LOCKING], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_opens_nothing_and_logs_nothing() -> None:
    text = (
        "import logging, os, sys, threading; before = set(os.listdir('/dev/fd')); import dislock, dislock.aio;"
        " [getattr(dislock, name) for name in dislock.__all__];"
        " assert set(os.listdir('/dev/fd')) == before; assert threading.active_count() == 1;"
        " assert not logging.getLogger('dislock').handlers and not logging.getLogger().handlers;"
        " assert 'sqlalchemy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# The protocol: what it says, and what it does when time has passed


def test_a_row_of_another_schedule_is_told_with_both_times_and_how_to_free_it() -> None:
    ends = to_micros(T0 + timedelta(days=40))
    script = Script(plan(slot=slot_plan()), rows(NONE, Done((("other:7", ends, NOW),))))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert str(T0 + timedelta(days=40)) in warning
    assert str(SLOT.expires) in warning
    assert "cronjob-lock:schedule:k" in warning
    assert "delete the row" in warning


def test_a_slot_that_could_not_be_given_back_is_told_with_its_end_and_how_to_free_it() -> None:
    held_by_other = Done((("other:7", NOW + 9, NOW),))
    script = Script(plan(slot=slot_plan(), lease=TERMS), rows(HELD, NONE, held_by_other, BROKEN))
    with pytest.raises(LockNotAcquiredError):
        script.run(script.protocol.acquire())
    (warning,) = script.warnings
    assert str(SLOT.expires) in warning
    assert "cronjob-lock:schedule:k" in warning
    assert "delete the row" in warning


def test_a_slot_that_ended_on_the_way_gives_way_to_the_current_one() -> None:
    """Nobody had it, so nobody holds anything: that must not be told as held by another."""
    later = to_micros(SLOT.expires) + 1
    clocks = Done(((NOW, "UTC"),)), Done(((later, "UTC"),))
    script = Script(
        plan(slot=slot_plan(Hourly(), None)), rows(clocks[0], NONE, Done(((None, None, later),)), clocks[1], HELD)
    )
    assert script.run(script.protocol.acquire()) is True
    first, second = (statement for statement in script.statements if isinstance(statement, ClaimSlot))
    assert (first.expires, second.tick) == (to_micros(SLOT.expires), to_micros(SLOT.expires))


def test_a_slot_that_was_anothers_and_ended_on_the_way_is_a_plain_refusal() -> None:
    ends = to_micros(SLOT.expires)
    script = Script(
        plan(slot=slot_plan(Hourly(), None)), rows(Done(((NOW, "UTC"),)), NONE, Done((("other:7", ends, ends + 1),)))
    )
    with pytest.raises(LockNotAcquiredError) as caught:
        script.run(script.protocol.acquire())
    assert type(caught.value) is LockNotAcquiredError


def test_slots_that_always_end_on_the_way_are_given_up_in_time() -> None:
    def answer(step: Step) -> Answer | None:
        if not isinstance(step, Execute):
            return None
        script.now += 3
        told = NOW + round((script.now - 100) * 3600) * 1_000_000
        return (
            Done(((told, "UTC"),))
            if isinstance(step.statement, ReadClock)
            else (Done(((None, None, told),)) if isinstance(step.statement, Inspect) else NONE)
        )

    script = Script(plan(slot=slot_plan(Hourly(), None)), answer)
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())
    assert script.now < 100 + 10 + 3 * 3


def test_a_slot_that_is_not_shown_to_be_held_is_not_told_as_held() -> None:
    script = Script(plan(slot=slot_plan()), rows(NONE, *[BROKEN] * 100))
    with pytest.raises(DatabaseUnavailableError):
        script.run(script.protocol.acquire())


def test_a_claim_in_doubt_is_told_also_to_whoever_wants_to_leave() -> None:
    script = Script(plan(lease=TERMS), rows(BROKEN._replace(leave=True)))
    assert script.run(script.protocol.acquire()) is False
    (warning,) = script.warnings
    assert "unknown" in warning


def test_hosts_that_failed_together_do_not_come_back_together() -> None:
    def pauses(chance: float) -> list[float]:
        script = Script(plan(lease=TERMS), lambda step: REFUSED if isinstance(step, Connect) else None, chance)
        with pytest.raises(DatabaseUnavailableError):
            script.run(script.protocol.acquire())
        begins = [step.until for step in script.steps if isinstance(step, Wait)]
        return [after - before for before, after in pairwise(begins)]

    low, high = pauses(0.0), pauses(0.999)
    assert low[0] * 2 < high[0]
    # It backs off, but not without end.
    assert low[0] < low[1] < low[2]
    assert max(high) <= 1.5


def test_after_a_long_sleep_nothing_is_sent_on_a_lease_that_is_over() -> None:
    script = Script(plan(lease=TERMS), rows(HELD))
    script.run(script.protocol.acquire())
    script.now += 3600
    loss = script.run(script.protocol.keep())
    assert loss is not None
    assert loss.reason is LossReason.UNCONFIRMED
    assert [type(statement) for statement in script.statements] == [ClaimLease]
