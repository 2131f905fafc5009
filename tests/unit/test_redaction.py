"""Mistyped database URLs: whatever libpq makes of them, the password does not reach standard error."""

from __future__ import annotations

import logging
from unittest import mock

import psycopg
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from dislock.cli.log import set_up_logging
from dislock.drivers.targets import Database
from dislock.errors import ConfigurationError
from tests.support.examples import examples

SECRET = "hunter2hunter2"
#: What comes before and after the password.
URLS = [
    ("postgresql://someone:", "@db.example.org:5432/app?sslmode=require"),
    ("postgresql+psycopg://someone:", "@db1:5432,db2:5433/app?target_session_attrs=read-write"),
    ("postgres://db/app?user=someone&password=", "&connect_timeout=3"),
    ("host=db.example.org user=someone password=", " dbname=app"),
    ("password='", "' host=db user=someone"),
]


@st.composite
def urls(draw: st.DrawFn) -> str:
    # Only what follows is mistyped: without the colon before it, a password is a part of the name to anybody.
    before, after = draw(st.sampled_from(URLS))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(after)))
        new = draw(st.sampled_from(["", "@", ":", "/", "?", "&", "=", " ", "%", "'", "[", "x", "\\"]))
        after = after[:at] + new + after[at + draw(st.integers(0, 1)) :]
    return before + SECRET + after


@examples(150)
@given(urls())
def test_a_password_stays_in_its_url(url: str) -> None:
    written: list[str] = []
    before = (logging.getLogger("dislock").handlers[:], logging.lastResort)
    try:
        set_up_logging(logging.WARNING, url)
        with mock.patch("dislock.cli.output.write", lambda _descriptor, text: written.append(text)):
            report(url)
    finally:
        logging.getLogger("dislock").handlers[:], logging.lastResort = before
    assert written
    assert SECRET not in "".join(written)


def report(url: str) -> None:
    """Log what a run with that URL may log: the refusal, or errors that name each part as libpq took it."""
    logger = logging.getLogger("dislock")
    try:
        database = Database(url, "dislock test")
    except ConfigurationError as error:
        logger.error("%s", error)  # noqa: TRY400 - as the command line does
        return
    parts = conninfo_to_dict(url.replace("+psycopg", "", 1))
    text = " ".join(f'{name} "{value}"' for name, value in parts.items())
    logger.error("%s", database.failure(psycopg.OperationalError(text), ["key_value"], broken=True).text)
    logger.error("no answer from %s", ", ".join(target.name for target in database.targets))
