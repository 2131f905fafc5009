"""The log of a run on standard error."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from dislock.cli.log import set_up_logging
from dislock.events import ERROR, WARNING, Event, report

logger = logging.getLogger("dislock.some")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    top, last = logging.getLogger("dislock"), logging.lastResort
    before = (top.handlers[:], top.level, top.propagate)
    yield
    top.handlers[:], top.level, top.propagate = before
    logging.lastResort = last


def fail(text: str) -> None:
    try:
        int(text)
    except ValueError:
        logger.exception("it\nfailed")


def test_one_line_each_and_a_word_for_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "postgresql://h/d")
    logger.info("not shown")
    logger.warning("look\nhere")
    logger.error("it %s", "failed")
    logging.getLogger("psycopg").warning("not ours")
    assert capfd.readouterr().err == "dislock: warning: look here\ndislock: it failed\n"


def test_tracebacks_only_at_debug(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.INFO, "postgresql://h/d")
    fail("why")
    assert capfd.readouterr().err == "dislock: it failed\n"
    set_up_logging(logging.DEBUG, "postgresql://h/d")
    fail("why")
    assert "ValueError: invalid literal" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://me:s3cret-word@h/d", "s3cret-word"),
        ("postgresql://me:s3%40cret@h/d", "s3@cret"),
        ("postgresql://me:s3%40cret@h/d", "s3%40cret"),
        ("postgresql://h/d?user=me&password=s3cret", "s3cret"),
        ("host=h password = 's3 cret' dbname=d", "s3 cret"),
        ("host=h password=s3cret", "s3cret"),
        ("postgresql://me:12345678@h/d", "12345678"),
        # Slips after which libpq takes the password for something else.
        ("postgresql://me:s3cret/h:5432/d", "s3cret"),
        ("postgresql://me:s3creth:5432/d", "s3creth:5432"),
        ("postgresql://me/s3cret@h:5432/d", "s3cret"),
        ("host=hpassword=s3cret", "s3cret"),
        ("postgresql://me:s3cret@h/d", "postgresql://me:s3cret@h/d"),
    ],
)
def test_secrets_are_blotted_out(url: str, secret: str, capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.DEBUG, url)
    logger.warning("cannot use %s", secret)
    fail(f"it was {secret}")
    err = capfd.readouterr().err
    assert secret not in err
    assert err.count("***") == 2


def test_what_is_no_secret_is_left_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "postgresql://someuser:pw@example.org:5432/database?sslmode=require")
    logger.warning("someuser example.org 5432 database require")
    set_up_logging(logging.WARNING, "postgresql://example.org:5432/database")
    logger.warning("example.org 5432")
    set_up_logging(logging.WARNING, "postgresql://someuser@example.org/database")
    logger.warning("someuser example.org")
    assert "***" not in capfd.readouterr().err


def test_a_message_that_cannot_be_formatted_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "x")
    logger.warning("%d", "no number")
    assert capfd.readouterr().err == ""


def test_what_decides_the_exit_code_is_said_at_every_level(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.CRITICAL, "postgresql://h/d")
    logger.warning("not shown")
    logger.error("the lease was lost")
    assert capfd.readouterr().err == "dislock: the lease was lost\n"


def test_a_password_that_is_the_users_name_hides_no_name(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "postgresql://report:report@h/d")
    logger.warning('role "report" does not exist')
    assert capfd.readouterr().err == 'dislock: warning: role "report" does not exist\n'


# With the time, and as JSON

LOST = Event(
    "lost",
    ERROR,
    "the lease was\nlost: s3cret-word",
    {
        "key": "cronjob-lock:lease:job",
        "token": 7,
        "tick": datetime(2026, 1, 1, 3, tzinfo=timezone.utc),
        "why": "s3cret-word",
        "message": "no",
        "nothing": None,
    },
)


def test_the_time_stands_in_front_of_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "postgresql://h/d", with_time=True)
    logger.warning("late")
    time, rest = capfd.readouterr().err.split(" ", 1)
    assert rest == "dislock: warning: late\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", time)


def test_json_is_an_object_a_line_with_the_events_fields(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.WARNING, "postgresql://me:s3cret-word@h/d", as_json=True)
    report(LOST)
    logger.warning("plain")
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() is not None
    assert first == {
        "level": "error", "event": "lost", "message": "the lease was lost: ***", "key": "cronjob-lock:lease:job",
        "token": 7, "tick": "2026-01-01T03:00:00Z", "why": "***", "nothing": None,
    }  # fmt: skip
    assert (second["level"], second["event"], second["message"]) == ("warning", "message", "plain")


def test_a_traceback_is_a_field_at_debug(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(logging.DEBUG, "postgresql://h/d", as_json=True)
    fail("why")
    assert "ValueError: invalid literal" in json.loads(capfd.readouterr().err)["traceback"]
    set_up_logging(logging.INFO, "postgresql://h/d", as_json=True)
    fail("why")
    assert "traceback" not in json.loads(capfd.readouterr().err)


def test_a_field_that_cannot_be_written_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError

    set_up_logging(logging.DEBUG, "postgresql://h/d", as_json=True)
    report(Event("odd", WARNING, "odd", {"odd": Odd()}))
    assert capfd.readouterr().err == ""
