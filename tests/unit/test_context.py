"""LockContext refuses at construction what could never work, and names the field."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from dislock import ConfigurationError, LeaseLossPolicy, LockContext

GOOD: dict[str, Any] = {
    "url": "postgresql://u:secret@h/d",
    "table_parts": ["key_value"],
    "lock_key": "k",
    "owner": "h:1",
}


def test_the_table_and_the_owner_have_the_command_lines_defaults() -> None:
    context = LockContext(url="postgresql://h/d", lock_key="k")
    assert context.table_parts == ["key_value"]
    assert context.owner == f"{os.uname().nodename}:{os.getpid()}"


def test_defaults_are_the_documented_ones() -> None:
    context = LockContext(**GOOD)
    assert context.next_run_time is None
    assert (context.run_ttl_seconds, context.lease_interval_seconds) == (60.0, None)
    assert context.schedule is None
    assert context.jitter_max_seconds == 0.0
    assert context.lease_loss_policy is LeaseLossPolicy.TERMINATE
    assert (context.connect_timeout_seconds, context.kill_grace_seconds, context.slot_tolerance_seconds) == (10, 10, 5)
    assert (context.wait_seconds, context.slot_consumed_by) == (0.0, "start")


@pytest.mark.parametrize("word", ["success", " Success "])
def test_the_word_for_what_consumes_a_slot(word: Any) -> None:
    assert LockContext(**GOOD, slot_consumed_by=word).slot_consumed_by == "success"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slot_consumed_by", "end"),
        ("slot_consumed_by", None),
        ("slot_consumed_by", 1),
        ("wait_seconds", -1),
        ("wait_seconds", 31 * 86400 + 1),
        ("wait_seconds", None),
        ("wait_seconds", float("nan")),
    ],
)
def test_what_cannot_be_waited_for_or_consumed_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field} "):
        LockContext(**GOOD, **{field: value})


def test_row_keys_carry_the_documented_prefixes() -> None:
    context = LockContext(**GOOD)
    assert context.schedule_key == "cronjob-lock:schedule:k"
    assert context.lease_key == "cronjob-lock:lease:k"


def test_the_url_is_not_in_the_repr() -> None:
    assert "secret" not in repr(LockContext(**GOOD))


def test_it_is_frozen_and_takes_keywords_only() -> None:
    context = LockContext(**GOOD)
    with pytest.raises(AttributeError):
        context.owner = "other"  # type: ignore[misc] # that it is refused is what is tested
    with pytest.raises(TypeError):
        LockContext(*GOOD.values())  # type: ignore[misc] # that it is refused is what is tested


def test_a_list_changed_later_does_not_move_the_table() -> None:
    parts = ["key_value"]
    context = LockContext(**{**GOOD, "table_parts": parts})
    parts[0] = "other"
    assert context.table_parts == ["key_value"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lock_key", ""),
        ("lock_key", "  "),
        ("lock_key", None),
        ("lock_key", "a\0b"),
        ("lock_key", "\udcff"),
        ("lock_key", "ä" * 1001),
        ("owner", ""),
        ("url", ""),
        ("table_parts", []),
        ("table_parts", ["a", "b", "c", "d"]),
        ("table_parts", ["a", ""]),
        ("table_parts", "key_value"),
        ("run_ttl_seconds", 0),
        ("run_ttl_seconds", -1),
        ("run_ttl_seconds", float("nan")),
        ("run_ttl_seconds", float("inf")),
        ("run_ttl_seconds", True),
        ("run_ttl_seconds", "60"),
        ("run_ttl_seconds", 31 * 86400 + 1),
        ("run_ttl_seconds", 0.01),
        ("run_ttl_seconds", 10**400),
        ("run_ttl_seconds", -(10**400)),
        pytest.param("run_ttl_seconds", 10**5000, id="huge"),
        ("lease_interval_seconds", 0.009),
        ("lease_interval_seconds", 0),
        ("lease_interval_seconds", float("nan")),
        ("jitter_max_seconds", -0.1),
        ("jitter_max_seconds", float("inf")),
        ("jitter_max_seconds", None),
        ("connect_timeout_seconds", 0),
        ("kill_grace_seconds", -1),
        ("slot_tolerance_seconds", float("nan")),
        ("next_run_time", datetime(2026, 1, 1)),
        ("next_run_time", "2026-01-01"),
        ("next_run_time", datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))),
        ("schedule", ""),
        ("time_zone", ""),
        ("lease_loss_policy", "ignore"),
        ("lease_loss_policy", None),
        ("lease_loss_policy", 1),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field) as caught:
        LockContext(**{**GOOD, field: value})
    assert isinstance(caught.value, ValueError)


def test_an_interval_above_the_ttl_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lease_interval_seconds"):
        LockContext(**GOOD, run_ttl_seconds=10, lease_interval_seconds=11)
    assert LockContext(**GOOD, run_ttl_seconds=10, lease_interval_seconds=10).lease_interval_seconds == 10


@pytest.mark.parametrize("word", ["continue", "CONTINUE", " Continue ", LeaseLossPolicy.CONTINUE])
def test_the_policy_may_be_its_word_in_any_case(word: Any) -> None:
    assert LockContext(**GOOD, lease_loss_policy=word).lease_loss_policy is LeaseLossPolicy.CONTINUE


def test_any_zone_will_do_for_next_run_time() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=9)))
    assert LockContext(**GOOD, next_run_time=moment).next_run_time == moment
