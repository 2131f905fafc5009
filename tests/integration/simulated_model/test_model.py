"""The simulation's model of the table does what the SQL does, on a real server, at every moment that matters."""

from __future__ import annotations

import threading
from itertools import product
from random import Random
from typing import Any

import psycopg
import pytest

from dislock.drivers.memory_table import Call, Row, Table
from dislock.protocol.statements import (
    ClaimLease,
    ClaimSlot,
    FreeAndSeal,
    GiveBackSlot,
    Inspect,
    MoveExpiry,
    ReadClock,
    Statement,
)
from tests.integration.simulated_model.conftest import Real

pytestmark = pytest.mark.integration

SECOND = 1_000_000
START = 1_772_334_000 * SECOND
WAIT = "20s"
KEYS, OWNERS = ("a", "b"), ("host:1", "host:2")


def on_model(table: Table, statement: Statement, now: int) -> Any:
    call = Call(statement)
    rows = table.begin(call, now)
    while rows is None:
        rows = table.finish(call, now)
    return rows


def content(table: Table) -> dict[str, tuple[str, int]]:
    return {key: (row.value, row.expire) for key, row in table.rows.items()}


def draw(rng: Random, table: Table, now: int) -> Statement:
    """A statement that has a fair chance to do something."""
    key, owner = rng.choice(KEYS), rng.choice(OWNERS)
    ends = table.rows[key].expire if key in table.rows else now
    near = rng.choice((ends, ends, ends + 1, ends - 1, now, now + 1, now + rng.randrange(-3, 10) * SECOND))
    tick = rng.choice((None, now, ends, ends - 1, ends + 1, now + 2 * SECOND, now - SECOND))
    known = rng.sample([ends, ends + 1, now + SECOND, now], rng.randrange(4))
    return rng.choice(
        (
            ReadClock(),
            Inspect(key, rng.choice(KEYS)),
            ClaimSlot(key, owner, WAIT, tick, rng.choice((near, now + 5 * SECOND))),
            ClaimLease(key, owner, WAIT, rng.randrange(5 * SECOND)),
            MoveExpiry(key, owner, WAIT, known, near),
            FreeAndSeal(key, owner, WAIT, known, near, "b" if key == "a" else "a", rng.choice((near, ends, ends + 1))),
            GiveBackSlot(key, owner, WAIT, tick, ends),
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_statements_does_the_same_on_the_model(real: Real, seed: int) -> None:
    rng = Random(seed)
    zone = real.admin.execute("SHOW TimeZone").fetchone()
    assert zone is not None
    table, now = Table(zone[0]), START
    kinds: dict[tuple[str, bool], int] = {}
    for number in range(250):
        now += rng.choice((0, 1, SECOND // 3, SECOND, 4 * SECOND, -2 * SECOND))
        real.set_clock(now)
        statement = draw(rng, table, now)
        before = content(table)
        expected = on_model(table, statement, now)
        assert real.execute(statement) == expected, (number, statement, before)
        assert real.rows() == content(table), (number, statement, before)
        kind = (type(statement).__name__, content(table) != before)
        kinds[kind] = kinds.get(kind, 0) + 1
    for name in ("ClaimSlot", "ClaimLease", "MoveExpiry", "FreeAndSeal", "GiveBackSlot"):
        assert kinds[name, True], "none of these did anything"
        assert kinds[name, False] or name == "ClaimLease"


# What somebody's transaction does with the row before it ends, as (SQL, effect on the model).
def leave(row: Row | None) -> Row | None:
    return row


def shorten(row: Row | None) -> Row | None:
    if row is not None:
        row.change(row.value, START + SECOND)
    return row


def rename(row: Row | None) -> Row | None:
    if row is not None:
        row.change("operator", row.expire)
    return row


def delete(row: Row | None) -> Row | None:
    return None


def replace(row: Row | None) -> Row | None:
    return None if row is None else Row(row.value, row.expire)


LOCK = "SELECT 1 FROM key_value WHERE key = 'a' FOR UPDATE"
UPDATE = "UPDATE key_value SET {} WHERE key = 'a'"
DELETE = "DELETE FROM key_value WHERE key = 'a'"
AGAIN = "INSERT INTO key_value SELECT 'a', value, expire_at FROM key_value WHERE key = 'kept'"
TRANSACTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "locks": ((LOCK,), leave),
    "shortens": ((UPDATE.format("expire_at = timestamptz 'epoch' + interval '1 second' * 1772334001"),), shorten),
    "renames": ((UPDATE.format("value = 'operator'"),), rename),
    "deletes": ((DELETE,), delete),
    "replaces": ((DELETE, AGAIN), replace),
}
ENDS = START + 5 * SECOND
STATEMENTS: dict[str, Statement] = {
    "slot, same owner": ClaimSlot("a", "host:1", WAIT, None, START + 8 * SECOND),
    "slot of a tick ahead": ClaimSlot("a", "host:2", WAIT, ENDS, START + 12 * SECOND),
    "slot that is over": ClaimSlot("a", "host:2", WAIT, None, START - SECOND),
    "lease": ClaimLease("a", "host:2", WAIT, 2 * SECOND),
    "renewal": MoveExpiry("a", "host:1", WAIT, [ENDS], START + 15 * SECOND),
    "renewal again": MoveExpiry("a", "host:1", WAIT, [START], ENDS),
    "renewal of both ends": MoveExpiry("a", "host:1", WAIT, [ENDS, START + SECOND], START + 15 * SECOND),
    "renewal by another": MoveExpiry("a", "host:2", WAIT, [ENDS], START + 15 * SECOND),
    "give back": GiveBackSlot("a", "host:1", WAIT, START + 4 * SECOND, ENDS),
    "give back of another slot": GiveBackSlot("a", "host:1", WAIT, None, START),
    "seal": FreeAndSeal("a", "host:1", WAIT, [ENDS], START + 15 * SECOND, "kept", ENDS + SECOND),
    "seal of a closed slot": FreeAndSeal("a", "host:1", WAIT, [ENDS], START + 15 * SECOND, "kept", ENDS),
    "seal by another": FreeAndSeal("a", "host:2", WAIT, [ENDS], START + 15 * SECOND, "kept", ENDS + SECOND),
    "seal of the row": FreeAndSeal("kept", "host:1", WAIT, [ENDS], START + 15 * SECOND, "a", ENDS + SECOND),
    "seal of the row, closed": FreeAndSeal("kept", "host:1", WAIT, [ENDS], START + 15 * SECOND, "a", ENDS - SECOND),
    "inspection": Inspect("a", "kept"),
}


@pytest.mark.parametrize("later", [START + SECOND // 2, START + 6 * SECOND, START + 9 * SECOND])
@pytest.mark.parametrize("outcome", ["commits", "rolls back"])
def test_a_statement_that_waits_decides_anew_when_it_has_the_row(real: Real, later: int, outcome: str) -> None:
    for (does, (sql, effect)), (name, statement) in product(TRANSACTIONS.items(), STATEMENTS.items()):
        what = f"{name} while a transaction {does} the row and {outcome}"
        compare_waiting(real, sql, effect if outcome == "commits" else leave, statement, later, what, present=True)


@pytest.mark.parametrize("later", [START + SECOND // 2, START + 9 * SECOND])
@pytest.mark.parametrize("outcome", ["commits", "rolls back"])
def test_a_statement_that_waits_for_a_row_that_is_being_inserted(real: Real, later: int, outcome: str) -> None:
    def insert(row: Row | None) -> Row | None:
        return Row("host:1", ENDS)

    sql = ("INSERT INTO key_value VALUES ('a', 'host:1', timestamptz 'epoch' + interval '1 second' * 1772334005)",)
    for name, statement in STATEMENTS.items():
        effect = insert if outcome == "commits" else leave
        compare_waiting(real, sql, effect, statement, later, f"{name}, {outcome}", present=False)


def compare_waiting(
    real: Real, sql: tuple[str, ...], effect: Any, statement: Statement, later: int, what: str, *, present: bool
) -> None:
    """Starts the statement at START while another transaction has the row; that one ends at ``later``."""
    table = Table()
    real.admin.execute("DELETE FROM key_value")
    if present:
        for key in ("a", "kept"):
            real.admin.execute(
                "INSERT INTO key_value VALUES (%s, 'host:1', timestamptz 'epoch' + interval '1 second' * 1772334005)",
                [key],
            )
            table.rows[key] = Row("host:1", ENDS)
    real.set_clock(START)
    other, sender = real.other, real.sender
    answer: list[Any] = []
    with other.transaction(force_rollback=effect is leave):
        for command in sql:
            other.execute(command)
        thread = threading.Thread(target=lambda: answer.append(real.execute(statement, sender)))
        thread.start()
        waited = real.wait_until_blocked(sender.info.backend_pid, lambda: not thread.is_alive())
        real.set_clock(later)
    thread.join(30)
    call = Call(statement)
    expected = table.begin(call, START)
    while expected is None and call.wants != "a":
        # It has the row that nobody else wants.
        expected = table.finish(call, START)
    # Another's insert that is not committed is in the way of a claim, and unseen by everything else.
    claims = isinstance(statement, (ClaimSlot, ClaimLease))
    assert waited is (expected is None and (present or claims)), what
    row = effect(table.rows.pop("a", None))
    if row is not None:
        table.rows["a"] = row
    while expected is None:
        expected = table.finish(call, later)
    assert answer == [expected], what
    assert real.rows() == content(table), what


def test_a_wait_ends_at_the_statements_own_limit_and_leaves_no_trace(real: Real) -> None:
    real.set_clock(START)
    real.admin.execute("INSERT INTO key_value VALUES ('a', 'host:1', timestamptz 'epoch')")
    before = real.rows()
    with real.other.transaction(force_rollback=True):
        real.other.execute(LOCK)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            real.execute(ClaimLease("a", "host:2", "50ms", SECOND))
    assert real.rows() == before
