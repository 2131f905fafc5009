"""What can be told without a server: construction, timeouts, exceptions, what a driver's error means."""

from __future__ import annotations

import asyncio
import pickle
from datetime import datetime, timezone
from enum import IntEnum

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import pg_advisory_lock
from pg_advisory_lock import (
    LockHolder,
    PgAdvisoryLock,
    PgAdvisoryLockError,
    PgAdvisoryLockLost,
    PgAdvisoryLockNotAcquired,
    PgAdvisoryLockTimeout,
    aio,
)
from pg_advisory_lock.acquisition import checked_timeout
from pg_advisory_lock.errors import describe
from pg_advisory_lock.sqlstate import ends_connection, sqlstate

LOCKERS = [PgAdvisoryLock, aio.PgAdvisoryLock]
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Milliseconds(IntEnum):
    FEW = 5


@pytest.mark.parametrize("locker_class", LOCKERS)
def test_both_classes_are_the_same_lock(locker_class: type[PgAdvisoryLock]) -> None:
    locker = locker_class(lock_args=["users", 1], raise_on_failure=False, shared=True)
    assert locker.lock_key == -8810417493829328172
    assert (locker.lock_args, locker.raise_on_failure, locker.shared) == (("users", "1"), False, True)
    assert repr(locker) == "PgAdvisoryLock(['users', '1'], raise_on_failure=False, shared=True)"


@pytest.mark.parametrize("locker_class", LOCKERS)
@pytest.mark.parametrize("value", [None, 0, 1, "yes"])
@pytest.mark.parametrize("name", ["raise_on_failure", "shared"])
def test_switches_must_be_bool(locker_class: type[PgAdvisoryLock], name: str, value: object) -> None:
    with pytest.raises(PgAdvisoryLockError, match=name):
        locker_class(["users"], **{name: value})


def test_an_instance_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PgAdvisoryLock(["users"]).lock_key = 5


@pytest.mark.parametrize("good", [0, 1, 1000, 2**31 - 1, Milliseconds.FEW])
def test_timeouts_from_zero_to_the_server_s_limit(good: int) -> None:
    assert checked_timeout(good) == int(good)
    assert type(checked_timeout(good)) is int


@pytest.mark.parametrize("bad", [-1, 2**31, True, False, 1.0, "5", None, float("inf")])
def test_no_other_timeout_is_taken(bad: object) -> None:
    with Session() as session:
        for refused in (PgAdvisoryLock(["users"]).lock, PgAdvisoryLock(["users"]).held):
            with pytest.raises(PgAdvisoryLockError, match="timeout_in_ms"):
                refused(session, timeout_in_ms=bad)


def test_the_exceptions_form_one_line() -> None:
    assert issubclass(PgAdvisoryLockTimeout, PgAdvisoryLockNotAcquired)
    assert issubclass(PgAdvisoryLockNotAcquired, PgAdvisoryLockError)
    # Somebody who handles contention must not handle a loss by the way.
    assert not issubclass(PgAdvisoryLockLost, PgAdvisoryLockNotAcquired)


def test_an_exception_survives_the_way_to_another_process() -> None:
    holder = LockHolder(pid=7, application_name="job", since=SINCE, mode="exclusive", granted=True)
    error = PgAdvisoryLockTimeout("no", lock_args=("users",), lock_key=5, holders=[holder])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.lock_args, copy.lock_key, copy.holders) == ("no", ("users",), 5, (holder,))


def test_a_message_names_a_handful() -> None:
    holders = [
        LockHolder(pid=1, application_name="job", since=SINCE, mode="exclusive", granted=True),
        LockHolder(pid=None, application_name="", since=None, mode="shared", granted=True),
        *(LockHolder(pid=n, application_name="", since=None, mode="shared", granted=False) for n in range(2, 9)),
    ]
    assert describe(holders) == (
        "pid 1 (job) holds it exclusive since 2026-01-02T03:04:05.000+00:00; a prepared transaction holds it shared; "
        "pid 2 waits for it shared; pid 3 waits for it shared; pid 4 waits for it shared; and 4 more"
    )
    assert describe([]) == "its holder is gone by now"
    assert describe(None) == "its holders could not be read"


def test_a_message_is_short_whatever_the_arguments() -> None:
    assert len(str(PgAdvisoryLock(["users", 10**4299]))) < 200


class _Driver(Exception):
    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("original", "state"),
    [
        (_Driver(sqlstate="55P03"), "55P03"),
        (_Driver(pgcode="40P01"), "40P01"),
        (_Driver({"C": "57014", "M": "cancelled"}), "57014"),
        (_Driver(sqlstate=None, pgcode=None), None),
        (_Driver("server closed the connection"), None),
        (_Driver(), None),
        (None, None),
    ],
)
def test_the_state_is_found_under_each_driver_s_name(original: Exception | None, state: str | None) -> None:
    assert sqlstate(_Driver(orig=original)) == state
    replaced = _Driver("another class, by an event of the engine")
    replaced.__cause__ = original
    assert sqlstate(replaced) == state
    assert sqlstate(_Driver(orig=replaced)) == state
    assert sqlstate(_Driver(orig=_Driver(orig=original))) == state


def test_errors_that_wrap_each_other_have_no_state() -> None:
    one, other = _Driver(), _Driver()
    one.orig, other.orig, one.__cause__ = other, one, one
    assert sqlstate(one) is None


@pytest.mark.parametrize("handle", [None, "postgresql://", 5])
def test_anything_but_a_session_or_connection_is_refused(handle: object) -> None:
    locker = PgAdvisoryLock(["users"])
    for method in (locker.lock, locker.lock_immediate, locker.held, locker.holders):
        with pytest.raises(PgAdvisoryLockError, match="Session"):
            method(handle)


def test_an_engine_and_the_other_half_s_handles_are_refused() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(PgAdvisoryLockError, match="not Engine"):
        PgAdvisoryLock(["users"]).lock(engine)
    with Session(engine) as session, pytest.raises(PgAdvisoryLockError, match="AsyncSession"):
        asyncio.run(aio.PgAdvisoryLock(["users"]).lock(session))


def test_other_databases_are_refused() -> None:
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        for refused in (PgAdvisoryLock(["users"]).lock, PgAdvisoryLock(["users"]).lock_immediate):
            with pytest.raises(PgAdvisoryLockError, match="sqlite"):
                refused(session)
        with engine.connect() as connection, pytest.raises(PgAdvisoryLockError, match="sqlite"):
            PgAdvisoryLock(["users"]).lock(connection)
    # From CPython 3.13 on a connection that is only forgotten warns, in whatever test runs then.
    engine.dispose()


def test_a_session_that_cannot_tell_its_database_is_refused() -> None:
    with Session() as session, pytest.raises(PgAdvisoryLockError, match="bind_arguments"):
        PgAdvisoryLock(["users"]).lock(session)


def test_a_session_that_may_not_begin_is_refused() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with Session(engine, autobegin=False) as session, pytest.raises(PgAdvisoryLockError, match=r"session\.begin\(\)"):
        PgAdvisoryLock(["users"]).lock(session)


def test_the_package_has_what_it_lists_and_no_more() -> None:
    assert all(getattr(pg_advisory_lock, name) for name in pg_advisory_lock.__all__)
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = pg_advisory_lock.nothing_here


@pytest.mark.parametrize(
    ("state", "ends"),
    [("57P01", True), ("25P03", True), ("08006", True), ("57014", False), ("25P02", False), (None, False)],
)
def test_which_errors_say_that_the_connection_is_gone(state: str | None, ends: bool) -> None:
    assert ends_connection(_Driver(sqlstate=state)) is ends
