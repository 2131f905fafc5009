"""The key: what deployed programs agree on, and what is refused so that they cannot disagree."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import quoted_name

from pg_advisory_lock import PgAdvisoryLock, PgAdvisoryLockError, advisory_key
from pg_advisory_lock.acquisition import checked_timeout
from pg_advisory_lock.keys import normalise

VECTORS = json.loads((Path(__file__).parent / "key_vectors.json").read_text())


class Loud(str):
    """A string that lies about itself."""

    def __str__(self) -> str:
        return "loud"

    __repr__ = __str__

    def encode(self, *_args: object, **_kwargs: object) -> bytes:
        return b"loud"


class Number(int):
    def __str__(self) -> str:
        return "number"

    __repr__ = __str__

    def __index__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False


class Named(uuid.UUID):
    def __str__(self) -> str:
        return "named"


class Mixed(str, enum.Enum):
    A = "users"


class Printed(str, enum.Enum):
    """What ``enum.StrEnum`` is, which came with Python 3.11: it prints its value, and ``Mixed`` its name."""

    A = "users"
    __str__ = str.__str__


class Level(enum.IntEnum):
    HIGH = 1


class Flags(enum.IntFlag):
    ONE = 1


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: repr(vector["lock_args"]))
def test_the_keys_of_deployed_users_never_change(vector: dict[str, list[object]]) -> None:
    args = [uuid.UUID(arg["uuid"]) if isinstance(arg, dict) else arg for arg in vector["lock_args"]]
    assert PgAdvisoryLock(args).lock_key == vector["key"]
    assert advisory_key(tuple(args)) == vector["key"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Loud("users"), "users"),
        (quoted_name("users", True), "users"),
        (Mixed.A, "users"),
        (Printed.A, "users"),
        *([(enum.StrEnum("Kind", {"A": "users"}).A, "users")] if hasattr(enum, "StrEnum") else []),
        (Level.HIGH, "1"),
        (Flags.ONE, "1"),
        (Number(-42), "-42"),
        (Named("12345678-1234-5678-1234-567812345678"), "12345678-1234-5678-1234-567812345678"),
        (0, "0"),
        ("a\0b", "a\0b"),
        (10**4299, "1" + "0" * 4299),
        (-(10**4300 - 1), "-" + "9" * 4300),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_component_counts_by_the_content_of_its_base_type(value: object, text: str) -> None:
    (normalised,) = normalise([value])
    assert normalised == text
    assert type(normalised) is str
    assert advisory_key([value]) == advisory_key([text])


def test_a_driver_s_own_uuid_is_a_uuid() -> None:
    pgproto = pytest.importorskip("asyncpg.pgproto.pgproto")
    text = "12345678-1234-5678-1234-567812345678"
    assert advisory_key([pgproto.UUID(text)]) == advisory_key([uuid.UUID(text)])


@pytest.mark.parametrize(
    "component",
    [None, True, False, 1.0, b"users", object(), ["users"], ("users",), int, 10**4300, -(10**4300), "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_components_that_could_differ_between_processes_are_refused(component: object) -> None:
    with pytest.raises(PgAdvisoryLockError, match=r"lock_args\[1\]"):
        PgAdvisoryLock(["users", component])


class Proxy:
    """Claims the class of what it stands for, as lazy strings, context-local objects and mocks do."""

    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def __class__(self) -> type:
        return type(self._value)

    def __str__(self) -> str:
        return str(self._value)


@pytest.mark.parametrize("value", ["users", 1, True, uuid.UUID(int=1)], ids=lambda value: type(value).__name__)
def test_what_stands_for_a_component_is_none(value: object) -> None:
    with pytest.raises(PgAdvisoryLockError, match=r"lock_args\[0\] must be a str, int or uuid.UUID, not Proxy"):
        PgAdvisoryLock([Proxy(value)])


@pytest.mark.parametrize("value", [["users"], ("users",)], ids=lambda value: type(value).__name__)
def test_what_stands_for_a_list_is_none(value: object) -> None:
    with pytest.raises(PgAdvisoryLockError, match="lock_args must be a list or tuple, not Proxy"):
        PgAdvisoryLock(Proxy(value))


@pytest.mark.parametrize("name", ["raise_on_failure", "shared"])
def test_what_stands_for_a_switch_is_none(name: str) -> None:
    with pytest.raises(PgAdvisoryLockError, match=name):
        PgAdvisoryLock(["users"], **{name: Proxy(True)})


def test_what_stands_for_a_timeout_is_none() -> None:
    with pytest.raises(PgAdvisoryLockError, match="must be an int, not Proxy"):
        checked_timeout(Proxy(5))


@pytest.mark.parametrize(
    "lock_args",
    ["users", {"users"}, {"users": 1}, iter(["users"]), None, 5, b"users", [], ()],
    ids=lambda value: type(value).__name__,
)
def test_only_a_list_or_tuple_with_something_in_it_names_a_lock(lock_args: object) -> None:
    with pytest.raises(PgAdvisoryLockError, match="lock_args must"):
        PgAdvisoryLock(lock_args)


@pytest.fixture
def _few_digits() -> Iterator[None]:
    if not hasattr(sys, "set_int_max_str_digits"):
        yield
        return
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("_few_digits")
def test_the_limit_of_digits_is_not_the_process_s() -> None:
    assert normalise([10**4299]) == ("1" + "0" * 4299,)
    with pytest.raises(PgAdvisoryLockError, match="4300 digits"):
        normalise([10**4300])


def test_later_changes_to_the_list_do_not_move_the_lock() -> None:
    args = ["users", 1]
    locker = PgAdvisoryLock(args)
    args.append("more")
    assert locker.lock_args == ("users", "1")
    assert locker.lock_key == advisory_key(["users", 1])


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(texts, min_size=1), st.lists(texts, min_size=1))
def test_different_arguments_have_different_keys(one: list[str], other: list[str]) -> None:
    assert (advisory_key(one) == advisory_key(other)) is (one == other)


@given(st.lists(st.one_of(texts, st.integers(), st.uuids()), min_size=1))
def test_every_key_fits_a_signed_bigint(args: list[str | int | uuid.UUID]) -> None:
    assert -(2**63) <= advisory_key(args) < 2**63
    assert advisory_key(args) == advisory_key([str(arg) for arg in args])


def test_the_key_loads_no_sqlalchemy() -> None:
    program = (
        "import sys\n"
        "from pg_advisory_lock.keys import advisory_key\n"
        "import pg_advisory_lock.errors\n"
        "print(advisory_key(['users', 1]), pg_advisory_lock.advisory_key(('users', '1')))\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('sqlalchemy', 'psycopg', 'greenlet')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-8810417493829328172 -8810417493829328172", "[]"]


def test_parts_that_only_look_alike_are_different() -> None:
    assert advisory_key(["caf\u00e9"]) != advisory_key(["cafe\u0301"])
    one = uuid.UUID("abcdef01-1234-5678-1234-567812345678")
    assert advisory_key([one]) == advisory_key([str(one)])
    assert advisory_key([one]) != advisory_key([str(one).upper()])
