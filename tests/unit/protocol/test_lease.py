"""The pure rules of a held lease, in figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dislock.context import default_interval
from dislock.errors import LossReason
from dislock.protocol.lease import Lease, Terms, lock_timeout
from dislock.protocol.statements import Moved
from dislock.protocol.steps import Done, Failed, Failure, Unanswered

SECOND = 1_000_000
TOLD = 1_000_000 * SECOND


def make(ttl: float = 60, interval: float = 10, grace: float | None = 10, sent: float = 100.0) -> Lease:
    terms = Terms("key", "host:1", ttl, interval, grace)
    return Lease(terms, sent=sent, acquired=TOLD, expires=TOLD + round(ttl * SECOND))


def renewed(now: int) -> Done:
    return Done((Moved(now, 1, "host:1", now),))


def test_a_runner_stops_early_enough_for_the_kill_before_the_row_ends() -> None:
    assert make(ttl=60, grace=10).stop_time == pytest.approx(100 + 60 - 10 - 0.2)
    # A third of the TTL at most goes to the grace period.
    assert make(ttl=12, interval=3, grace=10).stop_time == pytest.approx(100 + 12 - 4 - 0.2)
    # Of a very short one, a tenth is for the kill.
    assert make(ttl=1, interval=0.1, grace=0.1).stop_time == pytest.approx(100 + 1 - 0.1 - 0.1)


def test_in_the_library_a_lease_lasts_its_ttl() -> None:
    assert make(ttl=60, grace=None).stop_time == 160


@pytest.mark.parametrize("ttl", [0.1, 0.3, 1, 5, 60, 86400])
@pytest.mark.parametrize("grace", [None, 0.0, 10.0])
def test_every_accepted_setting_can_hold_a_lease(ttl: float, grace: float | None) -> None:
    terms = Terms("key", "host:1", ttl, ttl, grace)
    assert 0 < terms.pause <= terms.stop_after / 2
    assert terms.stop_after + terms.stop_grace <= ttl


def test_the_pause_is_the_interval_where_that_is_safe() -> None:
    assert make(ttl=60, interval=10).next_renewal == 110
    assert make(ttl=60, interval=60, grace=10).next_renewal == pytest.approx(100 + 49.8 / 2)


def test_a_renewal_writes_what_the_database_will_think_is_a_ttl_from_now() -> None:
    statement = make().renewal(105.0, 110.0)
    assert statement.expires == TOLD + (5 + 60) * SECOND
    assert statement.known == [TOLD + 60 * SECOND]


def test_everything_counts_from_before_the_request_was_sent() -> None:
    lease = make()
    lease.renewal(110.0, 120.0)
    assert lease.learn(renewed(TOLD + 15 * SECOND), 118.0) is None
    assert lease.stop_time == pytest.approx(110 + 49.8)
    assert lease.next_renewal == 120.0


def test_no_two_tries_write_the_same_expiry_even_when_the_clock_stands_still() -> None:
    lease = make()
    first = lease.renewal(100.0, 110.0).expires
    lease.learn(Unanswered(), 100.0)
    second = lease.renewal(100.0, 110.0)
    assert len({TOLD + 60 * SECOND, first, second.expires}) == 3
    assert second.known == [TOLD + 60 * SECOND, first]


def test_an_unanswered_renewal_is_known_until_a_later_one_is_confirmed() -> None:
    lease = make()
    lost = lease.renewal(110.0, 115.0).expires
    lease.learn(Unanswered(), 115.0)
    later = lease.renewal(116.0, 120.0)
    assert lost in later.known
    lease.learn(renewed(TOLD + 16 * SECOND), 116.1)
    assert lease.renewal(126.0, 130.0).known == [later.expires]


def test_a_try_that_was_never_sent_adds_nothing_to_what_is_known() -> None:
    lease = make()
    lease.learn(Failed(Failure("refused")), 110.0)
    assert lease.renewal(111.0, 115.0).known == [TOLD + 60 * SECOND]


def test_failures_are_retried_with_backoff_and_never_later_than_the_stop() -> None:
    lease = make()
    pauses = []
    now = 110.0
    for _ in range(12):
        assert lease.learn(Failed(Failure("refused")), now) is None
        pauses.append(lease.next_renewal - now)
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(lease.terms.pause)
    lease.learn(Failed(Failure("refused")), 149.0)
    assert lease.next_renewal == lease.stop_time


def test_after_a_renewal_the_backoff_begins_anew() -> None:
    lease = make()
    for _ in range(3):
        lease.learn(Failed(Failure("refused")), 110.0)
    lease.renewal(111.0, 112.0)
    assert lease.learn(renewed(TOLD + 11 * SECOND), 111.0) is None
    lease.learn(Failed(Failure("refused")), 121.0)
    assert lease.next_renewal == pytest.approx(121.1)


def test_the_clock_alone_loses_the_lease_and_leaves_the_grace() -> None:
    lease = make()
    lease.learn(Failed(Failure("the disk is full")), 120.0)
    assert lease.overdue(149.7) is None
    loss = lease.overdue(lease.stop_time)
    assert loss is not None
    assert loss.reason is LossReason.UNCONFIRMED
    assert "the disk is full" in loss.sentence
    assert loss.grace == pytest.approx(10)


def test_a_loss_names_the_last_trouble_that_says_something() -> None:
    lease = make()
    lease.learn(Unanswered(), 120.0)
    lease.learn(Failed(Failure("the disk is full")), 121.0)
    lease.learn(Unanswered(), 122.0)
    loss = lease.overdue(lease.stop_time)
    assert loss is not None
    assert "the disk is full" in loss.sentence


def test_a_loss_noticed_late_leaves_only_what_is_left_of_the_row() -> None:
    lease = make()
    late = lease.overdue(lease.stop_time + 7)
    assert late is not None
    assert late.grace == pytest.approx(3)
    very_late = lease.overdue(lease.stop_time + 700)
    assert very_late is not None
    assert very_late.grace == 0


def test_an_answer_that_comes_after_a_long_freeze_is_a_loss() -> None:
    lease = make()
    lease.renewal(110.0, 120.0)
    loss = lease.learn(renewed(TOLD + 10 * SECOND), 300.0)
    assert loss is not None
    assert loss.reason is LossReason.UNCONFIRMED


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((TOLD, 0, None, None), LossReason.REMOVED),
        ((TOLD, 0, "other:2", TOLD + 60 * SECOND), LossReason.TAKEN),
        # A namesake: the same owner string, but an expiry that this holder never wrote.
        ((TOLD, 0, "host:1", TOLD + 61 * SECOND), LossReason.TAKEN),
        ((TOLD, 0, "host:1", TOLD + 60 * SECOND), LossReason.TAKEN),
    ],
)
def test_a_lost_guard_is_a_loss_at_once_with_the_whole_grace(row: tuple[Any, ...], reason: LossReason) -> None:
    lease = make(ttl=9, interval=3, grace=10)
    lease._known = [TOLD + 60 * SECOND]
    lease.renewal(103.0, 105.0)
    loss = lease.learn(Done((Moved(*row),)), 103.1)
    assert loss is not None
    assert (loss.reason, loss.grace) == (reason, 10)


def test_where_nothing_is_to_be_stopped_a_loss_has_no_grace() -> None:
    lease = make(grace=None)
    lease.renewal(103.0, 105.0)
    loss = lease.learn(Done((Moved(TOLD, 0, "other:2", TOLD + 60 * SECOND),)), 103.1)
    assert loss is not None
    assert loss.grace == 0


@pytest.mark.parametrize("ended", [0, SECOND])
@pytest.mark.parametrize(("now", "grace"), [(100.1, 8.7), (105.8, 3.0), (108.0, 0.8), (300.0, 0.0)])
def test_a_row_that_ended_unnoticed_leaves_only_what_is_left_by_the_own_clock(
    now: float, grace: float, ended: int
) -> None:
    """Nobody had taken it when the database said so, and anybody may take it now."""
    lease = make(ttl=9, interval=3, grace=10)
    lease._known = [TOLD + 60 * SECOND]
    lease.renewal(100.1, 105.0)
    loss = lease.learn(Done((Moved(TOLD + 60 * SECOND + ended, 0, "host:1", TOLD + 60 * SECOND),)), now)
    assert loss is not None
    assert loss.reason is LossReason.EXPIRED
    assert loss.grace == pytest.approx(grace)


def test_a_release_writes_the_same_past_moment_at_each_try_and_never_one_before_the_acquisition() -> None:
    lease = make()
    assert lease.release(105, 110).expires == lease.release(106, 110).expires == lease.token + 1


def test_one_try_leaves_time_for_others() -> None:
    lease = make()
    assert lease.try_until(110.0) == pytest.approx(110 + 39.8 / 3)


def test_the_server_stops_waiting_for_a_row_lock_before_the_client_does() -> None:
    assert lock_timeout(10.0, 12.0) == "1800ms"
    assert lock_timeout(10.0, 10.0) == "1ms"


def test_a_clock_that_was_set_back_never_moves_the_end_before_the_acquisition() -> None:
    lease = make()
    lease.renewal(110.0, 115.0)
    lease.learn(renewed(TOLD - 3600 * SECOND), 110.1)
    assert lease.renewal(120.0, 125.0).expires > lease.release(120.0, 125.0).expires > lease.token


def test_a_last_try_without_an_answer_does_not_hide_the_cause() -> None:
    lease = make()
    lease.renewal(110.0, 120.0)
    lease.learn(Failed(Failure("the disk is full")), 111.0)
    lease.renewal(149.0, 149.2)
    loss = lease.learn(Unanswered(), lease.stop_time)
    assert loss
    assert "in time: the disk is full" in loss.sentence


def test_a_cause_that_has_passed_is_not_the_cause_of_a_later_loss() -> None:
    lease = make()
    lease.renewal(110.0, 120.0)
    lease.learn(Failed(Failure("the disk is full")), 111.0)
    lease.renewal(112.0, 120.0)
    lease.learn(renewed(TOLD + 12 * SECOND), 112.0)
    lease.renewal(122.0, 130.0)
    loss = lease.learn(Unanswered(), lease.stop_time)
    assert loss
    assert "did not answer in time" in loss.sentence


@pytest.mark.parametrize("silent", [True, False], ids=["no answer", "refused"])
@pytest.mark.parametrize("outage", [1, 20, 35, 120])
@pytest.mark.parametrize("grace", [0, 10, 30])
@pytest.mark.parametrize("interval", [1, 3, 10])
def test_a_ttl_by_the_rule_of_thumb_outlives_the_outage(interval: int, grace: int, outage: int, silent: bool) -> None:
    """docs/high-availability.md: TTL = time without a primary + grace + 3 x interval."""
    assert outlives(make(ttl=outage + grace + 3 * interval, interval=interval, grace=grace, sent=0.0), outage, silent)


@pytest.mark.parametrize("silent", [True, False], ids=["no answer", "refused"])
@pytest.mark.parametrize(
    ("ttl", "interval", "outage"), [(60, 10, 20), (40, 5, 15), (30, 3, 11), (20, 2, 7.3), (10, 1, 3.7)]
)
def test_each_ttl_of_the_page_outlives_what_the_page_says(ttl: int, interval: int, outage: float, silent: bool) -> None:
    lease = make(ttl=ttl, interval=interval, grace=10, sent=0.0)
    assert outage == pytest.approx(ttl - lease.terms.stop_grace - 3 * interval, abs=0.05)
    assert outlives(lease, outage, silent)
    page = (Path(__file__).parents[3] / "docs" / "high-availability.md").read_text()
    assert re.search(rf"^\| {ttl} \| {interval}\b.*\| {outage} s \|$", page, re.MULTILINE)


@pytest.mark.parametrize("ttl", [5, 10, 20, 30, 34, 40])
def test_up_to_40_seconds_the_defaults_leave_no_time_by_the_rule(ttl: int) -> None:
    terms = Terms("key", "host:1", ttl, default_interval(ttl), 10)
    assert ttl - terms.stop_grace - 3 * terms.pause <= 0


def outlives(lease: Lease, outage: float, silent: bool) -> bool:
    """Whether a try after the outage comes before the stop time, if the server goes away right before a renewal."""
    back = lease.next_renewal + outage
    now = lease.next_renewal
    while now < back:
        until = lease.try_until(now)
        lease.renewal(now, until)
        now = until if silent else now
        assert lease.learn(Unanswered() if silent else Failed(Failure("refused")), now) is None
        now = max(now, lease.next_renewal)
    return now < lease.stop_time
