"""Every variable, every option and every table name: whatever is written there, the answer is a setting or one line."""

from __future__ import annotations

import math
import string

from hypothesis import example, given
from hypothesis import strategies as st

from dislock.cli.asked import Settings
from dislock.cli.options import OPTIONS, Option
from dislock.cli.settings import load
from dislock.cli.values import LEVELS, read_table
from dislock.context import LONGEST_SECONDS
from dislock.errors import ConfigurationError
from tests.support.examples import examples

SECRET = "hunter2hunter2"
ENVIRON = {
    "DATABASE_URL": f"postgresql://u:{SECRET}@h/d",
    "LOCK_KEY": "job",
    "LOCK_STRATEGY": "schedule,lease",
    "CRON_SCHEDULE": "@daily",
}
SECONDS = [option for option in OPTIONS if option.metavar == "SECONDS"]

#: What people and programs put where a value belongs.
hostile = st.one_of(
    st.text(alphabet=string.printable + "\u0661\uff11\u00a0\udc80\udcff\u00e9\U0001f600", max_size=30),
    st.sampled_from(
        ["nan", "inf", "-inf", "Infinity", "1_0", "\uff11\uff10", "0x10", "1e400", "-1", "0", "-0", "1e-400", "1,5",
         "5s", "", " ", "\t", "true", "None", "$LOCK_KEY", "schedule,,lease", "lease;", "'", '"', '""', ".", "a..b",
         "../x", "9" * 400, f"postgresql://u:{SECRET}@h/d", f"host=h password={SECRET}"]
    ),
    st.floats().map(str),
    st.integers().map(str),
)  # fmt: skip


def outcome(option: Option, text: str, *, by_option: bool) -> Settings | str:
    """The settings, or the message; any other exception fails the test."""
    environ = {**ENVIRON, **({} if by_option else {option.variable: text})}
    argv = [f"{option.option}={text}"] if by_option else []
    try:
        found = load([*argv, "DATABASE_URL", "true"], environ)
    except ConfigurationError as error:
        return str(error)
    assert isinstance(found, Settings)
    return found


@examples(150)
@given(st.sampled_from(OPTIONS), hostile, st.booleans())
def test_a_value_is_taken_or_refused_in_one_line_by_its_name(option: Option, text: str, by_option: bool) -> None:
    found = outcome(option, text, by_option=by_option)
    if isinstance(found, str):
        assert "\n" not in found
        assert (option.option if by_option else option.variable) in found
        assert SECRET not in found


@examples(60)
@given(st.sampled_from(OPTIONS), hostile)
def test_an_option_means_what_its_variable_means(option: Option, text: str) -> None:
    by_variable, by_option = (outcome(option, text, by_option=value) for value in (False, True))
    if option.variable == "CRONJOB_LOCK_LOG_LEVEL" and text.strip().upper() not in {*LEVELS, ""}:
        assert isinstance(by_variable, Settings)
        assert by_variable.notices
        assert isinstance(by_option, str)
    elif isinstance(by_variable, str):
        # A missing one is named by both.
        assert isinstance(by_option, str)
        if text.strip():
            assert by_option == by_variable.replace(option.variable, option.option)
    else:
        # What has no effect is told more loudly of an option.
        assert isinstance(by_option, Settings)
        assert by_option._replace(notices=(), hints=()) == by_variable._replace(notices=(), hints=())


@examples(60)
@given(st.sampled_from(SECONDS), st.one_of(hostile, st.floats(allow_nan=False, allow_infinity=False).map(repr)))
def test_seconds_are_finite_and_within_a_month(option: Option, text: str) -> None:
    found = outcome(option, text, by_option=False)
    if isinstance(found, Settings):
        context = found.context
        values = [
            context.run_ttl_seconds, context.lease_interval_seconds or 1, context.jitter_max_seconds,
            context.kill_grace_seconds, context.connect_timeout_seconds, context.slot_tolerance_seconds,
        ]  # fmt: skip
        assert all(value is not None and math.isfinite(value) and 0 <= value <= LONGEST_SECONDS for value in values)
        assert not text.strip() or float(text) >= 0
        assert text.isascii() or not text.strip()
        assert "_" not in text


letters = st.characters(codec="utf-8", exclude_characters="\0", max_codepoint=0x24F)
parts = st.text(letters, min_size=1, max_size=20)
plain = parts.filter(lambda name: name == name.strip() and not {".", '"'} & set(name))


@examples(50)
@given(st.lists(parts, min_size=1, max_size=3))
@example(["my.schema", "tab.le"])
@example(['a"b'])
@example([" padded "])
def test_a_quoted_table_name_comes_out_as_it_went_in(names: list[str]) -> None:
    assert read_table(".".join('"' + name.replace('"', '""') + '"' for name in names)) == names


@examples(60)
@given(st.lists(plain, min_size=1, max_size=3))
def test_a_plain_table_name_is_taken_as_it_is(names: list[str]) -> None:
    assert read_table(" . ".join(names)) == names


known = st.sampled_from([*(option.option for option in OPTIONS), "--", "-", "DATABASE_URL"])


@examples(80)
@given(st.lists(st.one_of(hostile, known), max_size=6))
def test_no_command_line_breaks_the_parser_or_tells_a_secret(argv: list[str]) -> None:
    try:
        load(argv, ENVIRON)
    except ConfigurationError as error:
        assert SECRET not in str(error)  # noqa: PT017 - some command lines are right
        assert "\n" not in str(error)  # noqa: PT017 - likewise
