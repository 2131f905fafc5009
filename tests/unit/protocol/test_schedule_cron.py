"""Cron expressions against a second implementation, and against arithmetic, over leap days and year ends.

cronsim reads expressions as Debian's cron does. Where the two differ, the difference is listed here with its reason;
everywhere else they must agree.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given
from hypothesis import strategies as st

from dislock.errors import ConfigurationError
from dislock.protocol.schedule import Schedule
from tests.support.examples import examples

UTC = timezone.utc
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def field(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    """One field in the forms that both read alike."""

    def name(value: int) -> str:
        return str(value) if names is None or value % 3 else names[value - low]

    value = st.integers(low, high)
    # Not up to the field's end: releases of croniter differ in "59/15" (see below).
    single = value.map(name)
    ranges = st.tuples(value, value).filter(lambda p: p[0] < p[1]).map(lambda p: f"{name(p[0])}-{name(p[1])}")
    step = st.integers(1, high - low)
    parts = st.one_of(single, ranges, st.tuples(ranges, step).map(lambda p: f"{p[0]}/{p[1]}"))
    lists = st.lists(parts, min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), step.map(lambda n: f"*/{n}"), lists)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    day = draw(field(1, 31))
    # Cron's famous rule joins the two day fields by "or" unless one is "*"; with "*/2" they differ (see below).
    weekday = draw(field(0, 6, DAYS)) if day == "*" else "*"
    return " ".join([draw(field(0, 59)), draw(field(0, 23)), day, draw(field(1, 12, MONTHS)), weekday])


moments = st.one_of(
    st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1)),
    # Leap days, the February that has none, year ends, and the century that is no leap year.
    st.sampled_from(
        [datetime(2024, 2, 28), datetime(2026, 2, 28), datetime(2027, 12, 31), datetime(2028, 2, 29)]
    ).flatmap(lambda day: st.integers(0, 86399).map(lambda second: day + timedelta(seconds=second))),
).map(lambda moment: moment.replace(tzinfo=UTC))


def ours(expression: str, now: datetime) -> list[datetime]:
    """Two ticks after ``now``, and the one before them."""
    slot = Schedule(expression, "UTC").slot(now, session_zone="UTC", tolerance=0)
    assert slot.tick is not None
    assert slot.following is not None
    return [slot.tick, slot.expires, slot.following]


def theirs(expression: str, now: datetime) -> list[datetime]:
    back = CronSim(expression, now.replace(microsecond=0) + timedelta(seconds=1), reverse=True)
    forth = CronSim(expression, now)
    return [next(back), next(forth), next(forth)]


@examples(40)
@given(expressions(), moments)
def test_both_implementations_find_the_same_ticks(expression: str, now: datetime) -> None:
    try:
        expected = theirs(expression, now)
    except (CronSimError, StopIteration):
        # A date that never comes: cronsim refuses it in the constructor or gives up after 50 years.
        with pytest.raises(ConfigurationError, match="never comes"):
            Schedule(expression, "UTC")
        return
    assert ours(expression, now) == expected


DIFFERENCES = [
    # "5-5" written as a range: croniter takes equal bounds as the whole cycle.
    ("5-5 * * * *", datetime(2026, 3, 1, 0, 6), datetime(2026, 3, 1, 0, 7), datetime(2026, 3, 1, 1, 5)),
    # "*/2" beside a weekday: cron as it is joins by "and" as soon as a field begins with "*"; croniter only for "*".
    ("0 0 */2 * mon", datetime(2026, 3, 2), datetime(2026, 3, 3), datetime(2026, 3, 9)),
    # Six fields: croniter has the seconds last, cronsim first.
    ("0 0 1 * * 5", datetime(2026, 3, 1), datetime(2026, 3, 1, 0, 0, 5), datetime(2026, 3, 6, 1)),
]


@pytest.mark.parametrize(("expression", "now", "croniter", "cronsim"), DIFFERENCES)
def test_known_differences(expression: str, now: datetime, croniter: datetime, cronsim: datetime) -> None:
    assert Schedule(expression, "UTC").slot(now.replace(tzinfo=UTC), session_zone="UTC", tolerance=0).expires == (
        croniter.replace(tzinfo=UTC)
    )
    assert next(CronSim(expression, now)) == cronsim


@pytest.mark.parametrize(
    "expression",
    [
        "0 22-2 * * *",  # ranges may wrap around
        "0 0 * * fri-mon",
        "0 0 * * L5",  # the last Friday; cronsim writes 5L, as Quartz does
        "0 0 * * * 0 2030",  # years
    ],
)
def test_forms_that_only_croniter_knows(expression: str) -> None:
    Schedule(expression)
    with pytest.raises(CronSimError):
        CronSim(expression, datetime(2026, 1, 1))


@examples(120)
@given(st.text(alphabet="0123456789*/,-?LWlwhr#@ abcdefghijklmnostuvy\t", max_size=24))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        schedule = Schedule(text, "UTC")
    except ConfigurationError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most texts are refused, and some are not
        return
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert schedule.slot(now, session_zone="UTC", tolerance=5).expires > now


@examples(30)
@given(st.text(alphabet="\u0661\uff11\u00a0\u3000\u2212\u00e9\ud800*5 ", max_size=20))
def test_no_text_at_all_breaks_the_parser(text: str) -> None:
    assume(not text.isascii())
    with pytest.raises(ConfigurationError):
        Schedule(text)


@examples(25)
@given(moments, st.integers(1, 59))
def test_steps_of_a_minute_field_by_arithmetic(now: datetime, step: int) -> None:
    """A third opinion, for a form that can be computed by hand."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    ticks = [hour + timedelta(hours=h, minutes=m) for h in (-1, 0, 1, 2) for m in range(0, 60, step)]
    before = max(t for t in ticks if t <= now)
    after = [t for t in ticks if t > now][:2]
    assert ours(f"*/{step} * * * *", now) == [before, *after]
