"""Which tick a start belongs to."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

from dislock.errors import ConfigurationError
from dislock.protocol.schedule import Schedule, Slot

DAILY = Schedule("0 3 * * *", "UTC")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc, arg-type] # mypy counts the star as zone


def slot(schedule: Schedule, now: datetime, tolerance: float = 5.0, zone: str = "UTC") -> Slot:
    return schedule.slot(now, session_zone=zone, tolerance=tolerance)


TICK = utc(2026, 3, 10, 3)


@pytest.mark.parametrize("late", [0.0, 0.000001, 1.0, 3600.0, 86394.9])
def test_a_start_belongs_to_the_latest_tick(late: float) -> None:
    assert slot(DAILY, TICK + timedelta(seconds=late)) == Slot(TICK, TICK + timedelta(days=1), TICK + timedelta(days=2))


@pytest.mark.parametrize("early", [0.000001, 0.1, 4.999999, 5.0])
def test_an_early_start_belongs_to_the_coming_tick(early: float) -> None:
    assert slot(DAILY, TICK - timedelta(seconds=early)) == slot(DAILY, TICK)


def test_beyond_the_tolerance_a_start_belongs_to_the_tick_before() -> None:
    assert slot(DAILY, TICK - timedelta(seconds=5.000001)).tick == TICK - timedelta(days=1)


def test_no_tolerance_means_none() -> None:
    assert slot(DAILY, TICK - timedelta(microseconds=1), tolerance=0).tick == TICK - timedelta(days=1)
    assert slot(DAILY, TICK, tolerance=0).tick == TICK


def test_the_tolerance_is_never_more_than_half_the_gap() -> None:
    each_second = Schedule("* * * * * *", "UTC")
    assert each_second.tolerance(TICK, session_zone="UTC", tolerance=5) == 0.5
    assert slot(each_second, TICK + timedelta(seconds=0.49)).tick == TICK
    assert slot(each_second, TICK + timedelta(seconds=0.51)).tick == TICK + timedelta(seconds=1)
    assert DAILY.tolerance(TICK, session_zone="UTC", tolerance=5) == 5
    assert DAILY.tolerance(TICK, session_zone="UTC", tolerance=86400) == 43200


def test_the_jitter_ends_before_the_next_tick_can_be_meant() -> None:
    assert DAILY.jitter_cap(TICK, session_zone=None, tolerance=5) == 86395
    assert Schedule("* * * * * *").jitter_cap(TICK, session_zone=None, tolerance=5) == 0.5


def test_the_zone_of_the_session_counts_only_where_the_schedule_has_none() -> None:
    assert slot(Schedule("0 3 * * *"), TICK, zone="Europe/Berlin").tick == utc(2026, 3, 10, 2)
    assert slot(Schedule("0 3 * * *", "Asia/Tokyo"), TICK, zone="Europe/Berlin").tick == utc(2026, 3, 9, 18)
    # With a zone of its own, a session whose zone has no name does no harm.
    assert slot(DAILY, TICK, zone="<+03>-03").tick == TICK


@pytest.mark.parametrize("zone", ["<+03>-03", "posixrules", "localtime", "FOO5BAR", ""])
def test_a_session_zone_without_a_name_tells_the_way_out(zone: str) -> None:
    with pytest.raises(ConfigurationError, match=r"CRON_TZ.*time_zone"):
        slot(Schedule("0 3 * * *"), TICK, zone=zone)


@pytest.mark.parametrize("expression", ["R * * * *", "r(1-5) * * * *", "* * R/2 * *", "H * * * *", "h(0-9)/3 2 * * *"])
def test_random_and_hashed_fields_are_refused(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="every host must compute the same ticks"):
        Schedule(expression)


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 29 2 * 0 2023", "0 0 31 2 * 0 2028"],
)
def test_dates_that_never_come_are_refused(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="never comes"):
        Schedule(expression)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("@dayly", "the aliases are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
        ("@daily *", "the aliases are"),
        ("* * * *", "must have 5, 6 or 7 fields, and has 4"),
        ("1 2 3 4 5 6 7 8", "must have 5, 6 or 7 fields, and has 8"),
    ],
)
def test_the_shape_of_an_expression_is_told_in_words(expression: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Schedule(expression)


@pytest.mark.parametrize(
    "expression",
    ["", "  ", "* * * *", "* * * * * * * *", "60 * * * *", "* 24 * * *", "0 0 0 * *", "0 0 * 13 *", "* * * * 8",
     "*/0 * * * *", "0-99999999999 * * * *", "@every 5m", "@reboot", "a b c d e", "- - - - -", "1-2-3 * * * *",
     "\u0661 * * * *", "*\u00a0* * * *", "\ud800 * * * *", "0 0 * * 1#6", "; rm -rf / *", "\x00 * * * *"],
)  # fmt: skip
def test_what_is_no_expression_is_refused_in_one_line(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="cron expression") as caught:
        Schedule(expression)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("expression", "tick", "expires"),
    [
        ("@daily", utc(2026, 3, 10), utc(2026, 3, 11)),
        ("  @Hourly ", utc(2026, 3, 10, 3), utc(2026, 3, 10, 4)),
        ("@yearly", utc(2026, 1, 1), utc(2027, 1, 1)),
        ("0 0 L * *", utc(2026, 2, 28), utc(2026, 3, 31)),
        ("0 0 * * 1#2", utc(2026, 3, 9), utc(2026, 4, 13)),
        ("0 0 * * L5", utc(2026, 2, 27), utc(2026, 3, 27)),
        ("0 0 29 2 *", utc(2024, 2, 29), utc(2028, 2, 29)),
        ("0 12 * FEB-mar sun", utc(2026, 3, 8, 12), utc(2026, 3, 15, 12)),
        # Seconds come last.
        ("*/30 * * * * 15", utc(2026, 3, 10, 3, 0, 15), utc(2026, 3, 10, 3, 30, 15)),
        # Years come after them.
        ("0 0 1 1 * 0 2020-2040/10", utc(2020, 1, 1), utc(2030, 1, 1)),
        ("0 0 1 1 * 0 2020,2099", utc(2020, 1, 1), utc(2099, 1, 1)),
    ],
)
def test_expressions_are_read_as_croniter_reads_them(expression: str, tick: datetime, expires: datetime) -> None:
    found = slot(Schedule(expression, "UTC"), utc(2026, 3, 10, 3, 0, 20))
    assert (found.tick, found.expires) == (tick, expires)


class TestYears:
    once = Schedule("0 0 1 6 * 0 2027", "UTC")

    def test_before_the_first_tick_there_is_none(self) -> None:
        assert slot(self.once, utc(2026, 6, 1)) == Slot(None, utc(2027, 6, 1), None)
        assert math.isinf(self.once.jitter_cap(utc(2026, 6, 1), session_zone=None, tolerance=5))

    def test_the_last_tick_can_be_started_for_a_day(self) -> None:
        last = Slot(utc(2027, 6, 1), utc(2027, 6, 2), None)
        assert slot(self.once, utc(2027, 6, 1)) == last
        assert slot(self.once, utc(2027, 5, 31, 23, 59, 57)) == last
        assert slot(self.once, utc(2027, 6, 1, 23, 59, 59)) == last
        assert self.once.jitter_cap(utc(2027, 6, 1), session_zone=None, tolerance=5) == 86395

    def test_after_that_it_says_when_it_was(self) -> None:
        with pytest.raises(ConfigurationError, match=r"no tick any more.*2027-06-01 00:00:00"):
            slot(self.once, utc(2027, 6, 2))

    def test_the_last_but_one_knows_its_end_and_nothing_after_it(self) -> None:
        twice = Schedule("0 0 1 6 * 0 2027,2028", "UTC")
        assert slot(twice, utc(2027, 6, 1)) == Slot(utc(2027, 6, 1), utc(2028, 6, 1), None)
        assert slot(twice, utc(2027, 5, 31, 23, 59, 57)) == Slot(utc(2027, 6, 1), utc(2028, 6, 1), None)


def test_times_come_back_in_utc_whatever_went_in() -> None:
    tokyo = timezone(timedelta(hours=9))
    found = slot(DAILY, TICK.astimezone(tokyo))
    assert found == slot(DAILY, TICK)
    assert {found.tick.tzinfo, found.expires.tzinfo, found.following.tzinfo} == {timezone.utc}  # type: ignore[union-attr] # all three are there
