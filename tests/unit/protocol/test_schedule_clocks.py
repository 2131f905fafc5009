"""Changes of the clocks: whatever the zone and the moment, all hosts compute one and the same chain of slots."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import cache
from importlib.metadata import version
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dislock.protocol.schedule import Schedule
from tests.support.examples import examples

UTC = timezone.utc
#: Both hemispheres, shifts at midnight and across it, odd offsets, a shift of two hours, winter time in summer's
#: place (Dublin, Casablanca); each with a year in which it changes its clocks.
ZONES = {
    "Europe/Berlin": 2026,
    "Europe/London": 2026,
    "Europe/Dublin": 2026,
    "America/New_York": 2026,
    "America/St_Johns": 2026,
    "America/Havana": 2026,
    "America/Santiago": 2026,
    "America/Sao_Paulo": 2017,
    "Africa/Casablanca": 2026,
    "Africa/Cairo": 2025,
    "Asia/Tehran": 2021,
    "Australia/Sydney": 2026,
    "Pacific/Chatham": 2026,
    "Antarctica/Troll": 2026,
}
#: Zones that change their clocks by half an hour; croniter before 7 loses a tick there in spring.
HALF_HOUR = {"Australia/Lord_Howe": 2026}
EXPRESSIONS = [
    "*/20 * * * *", "*/7 1-3 * * *",
    "* * * * *", "*/15 * * * *", "0 * * * *", "30 * * * *", "0 */2 * * *",
    "30 2 * * *", "0 2 * * *", "30 1 * * *", "0 3 * * *", "0 0 * * *", "15 0 * * *", "45 23 * * *",
    "30 1,2,3 * * *", "*/20 2 * * *", "0 1-3 * * *", "5 2 1 * *", "0 3 * * sun", "30 2 * * 7#1", "10 */3 L * 0",
]  # fmt: skip


@cache
def transitions(name: str, year: int) -> list[datetime]:
    """The moments at which the zone changes its offset in that year."""
    zone, moment, found = ZoneInfo(name), datetime(year, 1, 1, tzinfo=UTC), []
    while moment.year == year:
        if moment.astimezone(zone).utcoffset() != (moment + timedelta(days=1)).astimezone(zone).utcoffset():
            minutes = (moment + timedelta(minutes=m) for m in range(0, 1440, 15))
            found.append(
                next(
                    m + timedelta(minutes=15)
                    for m in minutes
                    if m.astimezone(zone).utcoffset() != (m + timedelta(minutes=15)).astimezone(zone).utcoffset()
                )
            )
        moment += timedelta(days=1)
    return found


def test_each_zone_has_both_transitions() -> None:
    for name, year in {**ZONES, **HALF_HOUR}.items():
        assert len(transitions(name, year)) >= 2, name


def check(name: str, year: int, expression: str, which: int, second: int, ahead: float) -> None:
    changes = transitions(name, year)
    now = changes[which % len(changes)] + timedelta(seconds=second)
    schedule = Schedule(expression, name)

    def slot(moment: datetime) -> tuple[datetime | None, datetime, datetime | None]:
        found = schedule.slot(moment, session_zone="UTC", tolerance=0)
        return found.tick, found.expires, found.following

    tick, expires, following = slot(now)
    assert tick is not None
    assert following is not None
    assert tick <= now < expires < following
    # Every start between the two ticks has this slot: nobody starts the job a second time.
    other = now + (expires - now) * ahead
    assert slot(other)[:2] == (tick, expires)
    assert slot(tick)[:2] == (tick, expires)
    # The next slot begins where this one ends: no start falls between them.
    assert slot(expires)[:2] == (expires, following)


moments = {"second": st.integers(-7200, 14400), "which": st.integers(0, 3), "ahead": st.floats(0, 0.999)}


@examples(50)
@given(name=st.sampled_from(sorted(ZONES)), expression=st.sampled_from(EXPRESSIONS), **moments)
def test_slots_follow_one_another_without_gap_or_overlap(
    name: str, expression: str, which: int, second: int, ahead: float
) -> None:
    check(name, ZONES[name], expression, which, second, ahead)


@examples(15)
@given(name=st.sampled_from(sorted(HALF_HOUR)), expression=st.sampled_from(EXPRESSIONS), **moments)
def test_half_an_hour_too(name: str, expression: str, which: int, second: int, ahead: float) -> None:
    if int(version("croniter").split(".")[0]) < 7 and expression == "0 * * * *":
        pytest.skip("croniter before 7 loses the tick right after a shift of half an hour")
    check(name, HALF_HOUR[name], expression, which, second, ahead)


@pytest.mark.parametrize("which", [0, 1])
def test_half_an_hour_minute_by_minute(which: int) -> None:
    """croniter alone gave the starts of one slot different ends."""
    for minute in range(-60, 90, 5):
        check("Australia/Lord_Howe", 2026, "*/20 * * * *", which, minute * 60, 0.5)


def ticks(expression: str, zone: str, begin: datetime, number: int) -> list[str]:
    """The ticks from ``begin`` on, as a wall clock shows them."""
    schedule, moment, shown = Schedule(expression, zone), begin.replace(tzinfo=UTC), []
    for _ in range(number):
        moment = schedule.slot(moment, session_zone="UTC", tolerance=0).expires
        shown.append(moment.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z"))
    return shown


def test_a_time_that_is_left_out_comes_at_the_next_that_exists() -> None:
    assert ticks("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12), 2) == ["29 03:00+0200", "30 02:30+0200"]


def test_a_time_that_comes_twice_is_two_ticks() -> None:
    # cron itself starts such a job once: then the second slot stays unused.
    assert ticks("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, 12), 3) == [
        "25 02:30+0200",
        "25 02:30+0100",
        "26 02:30+0100",
    ]


def test_an_hourly_job_runs_in_every_hour_that_there_is() -> None:
    assert ticks("0 * * * *", "Europe/Berlin", datetime(2026, 10, 24, 23, 30), 4) == [
        "25 02:00+0200",
        "25 02:00+0100",
        "25 03:00+0100",
        "25 04:00+0100",
    ]
    assert ticks("0 * * * *", "Europe/Berlin", datetime(2026, 3, 29, 0, 30), 2) == ["29 03:00+0200", "29 04:00+0200"]


def test_a_day_that_never_was() -> None:
    # Samoa went from the 29th to the 31st of December 2011: the 30th's tick comes at the first moment after it.
    assert ticks("0 12 * * *", "Pacific/Apia", datetime(2011, 12, 29, 12), 3) == [
        "29 12:00-1000",
        "31 00:00+1400",
        "31 12:00+1400",
    ]
