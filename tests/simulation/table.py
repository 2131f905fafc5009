"""What PostgreSQL does with the statements of ``protocol.statements``, as values: the SQL, clause by clause.

A statement has two moments. At its start it takes its snapshot; where it needs a row that another transaction has
locked, it waits, and then decides anew on the newest version of the row, at that later moment. Which of its clauses
belong to which moment follows READ COMMITTED:

- ``INSERT ... ON CONFLICT DO UPDATE`` computes what it would insert at the start, locks the row that is in its way
  whether or not its ``WHERE`` holds, and evaluates ``WHERE`` and ``SET`` when it has the lock. A row that has gone
  meanwhile is inserted with the values of the start.
- ``UPDATE`` evaluates its ``WHERE`` and its ``SET`` on the snapshot first: without a match it never waits. With one it
  waits for the lock. A row that was only locked, or whose change was undone, is then changed without another look, so
  what ``clock_timestamp()`` said at the start counts. On a row that was changed both are evaluated again. A row that
  was deleted, even if another took its place, is none.
- The reading part of ``MoveExpiry`` shows the snapshot, and the time of the start.

``tests/integration/simulated_model`` compares all of this with a real server.
"""

from __future__ import annotations

from typing import Any

from dislock.protocol.statements import (
    MOMENT_TYPES,
    ClaimLease,
    ClaimSlot,
    GiveBackSlot,
    Inspect,
    MoveExpiry,
    ReadClock,
    Statement,
)

Rows = tuple[tuple[Any, ...], ...]


class Row:
    """One row; the object lives as long as the row does, through all its versions."""

    __slots__ = ("expire", "holder", "value", "version")

    def __init__(self, value: str, expire: int) -> None:
        self.value = value
        self.expire = expire
        self.version = 0
        #: What the simulation knows of who took it; PostgreSQL knows nothing of that.
        self.holder: Any = None

    def change(self, value: str, expire: int) -> None:
        self.value, self.expire = value, expire
        self.version += 1


class Call:
    """One statement on its way."""

    __slots__ = (
        "begun",
        "done",
        "fate",
        "link",
        "process",
        "row",
        "seen",
        "sent",
        "statement",
        "version",
        "waits",
        "warned",
    )

    def __init__(self, statement: Any, process: Any = None) -> None:
        self.statement = statement
        self.process = process
        self.sent = 0.0
        #: The time of its start, and what its snapshot had.
        self.begun = 0
        self.row: Row | None = None
        self.version = -1
        self.seen: tuple[str | None, int | None] = (None, None)
        self.waits = 0
        #: The server warned in its answer.
        self.warned = False


class Table:
    """The lock table. The methods named by ``took``, ``refused`` and ``moved`` are for the simulation to watch."""

    def __init__(self, zone: str = "UTC") -> None:
        self.zone = zone
        self.rows: dict[str, Row] = {}

    def begin(self, call: Call, now: int) -> Rows | None:
        """Starts a statement: its result, or None if it goes on once it has the lock of its row."""
        return _BEGIN[type(call.statement)](self, call, call.statement, now)

    def finish(self, call: Call, now: int) -> Rows:
        """Carries on with the lock of the row."""
        return _FINISH[type(call.statement)](self, call, call.statement, now)

    def took(self, call: Call, row: Row, now: int) -> None:
        """``call`` made the row its own, or is about to: before ``value`` and ``expire`` change."""

    def refused(self, call: Call, row: Row, now: int) -> None:
        """``call`` wanted the row and did not get it."""

    def moved(self, call: Call, row: Row, now: int) -> None:
        """``call`` is about to move the row's end."""

    def _read_clock(self, call: Call, statement: ReadClock, now: int) -> Rows:
        return ((now, self.zone),)

    def _inspect(self, call: Call, statement: Inspect, now: int) -> Rows:
        row = self.rows.get(statement.key)
        slot = self.rows.get(statement.slot_key)
        seen = (slot.value, slot.expire) if slot else (None, None)
        return ((*((row.value, row.expire) if row else (None, None)), now, *seen),)

    def _begin_slot(self, call: Call, statement: ClaimSlot, now: int) -> Rows | None:
        return None if statement.expires > now else ()

    def _finish_slot(self, call: Call, statement: ClaimSlot, now: int) -> Rows:
        row = self.rows.get(statement.key)
        if row is None:
            row = self.rows[statement.key] = Row("", 0)
        elif not (row.expire <= max(now, statement.tick or now) and statement.expires > now):
            self.refused(call, row, now)
            return ()
        self.took(call, row, now)
        row.change(statement.owner, statement.expires)
        return ((now, row.expire, MOMENT_TYPES[0]),)

    def _begin_lease(self, call: Call, statement: ClaimLease, now: int) -> Rows | None:
        call.begun = now
        return None

    def _finish_lease(self, call: Call, statement: ClaimLease, now: int) -> Rows:
        row = self.rows.get(statement.key)
        if row is None:
            row = self.rows[statement.key] = Row("", 0)
            expire = call.begun + statement.ttl
        elif self.is_free(row, now):
            expire = now + statement.ttl
        else:
            self.refused(call, row, now)
            return ()
        self.took(call, row, now)
        row.change(statement.owner, expire)
        return ((now, expire, MOMENT_TYPES[0]),)

    def is_free(self, row: Row, now: int) -> bool:
        return row.expire <= now

    def is_own(self, row: Row, statement: MoveExpiry, now: int) -> bool:
        return row.value == statement.owner and (
            (row.expire in statement.known and row.expire > now) or row.expire == statement.expires
        )

    def _begin_move(self, call: Call, statement: MoveExpiry, now: int) -> Rows | None:
        row = self.rows.get(statement.key)
        call.begun, call.row = now, row
        if row is None:
            return ((now, 0, None, None),)
        call.seen, call.version = (row.value, row.expire), row.version
        return None if self.is_own(row, statement, now) else ((now, 0, row.value, row.expire),)

    def _finish_move(self, call: Call, statement: MoveExpiry, now: int) -> Rows:
        row = self.rows.get(statement.key)
        moved = 0
        if row is not None and row is call.row and (row.version == call.version or self.is_own(row, statement, now)):
            self.moved(call, row, now)
            row.change(row.value, statement.expires)
            moved = 1
        return ((call.begun, moved, *call.seen),)

    def _begin_back(self, call: Call, statement: GiveBackSlot, now: int) -> Rows | None:
        row = call.row = self.rows.get(statement.key)
        if row is None or row.value != statement.owner or row.expire != statement.expires:
            return ()
        call.begun, call.version = now, row.version
        return None

    def _finish_back(self, call: Call, statement: GiveBackSlot, now: int) -> Rows:
        row = self.rows.get(statement.key)
        if row is None or row is not call.row or row.value != statement.owner or row.expire != statement.expires:
            return ()
        self.moved(call, row, now)
        row.change(row.value, self.given_back(statement, call.begun if row.version == call.version else now))
        return ((1,),)

    def given_back(self, statement: GiveBackSlot, now: int) -> int:
        return max(now, statement.tick or now)


_BEGIN: dict[type[Statement], Any] = {
    ReadClock: Table._read_clock,
    Inspect: Table._inspect,
    ClaimSlot: Table._begin_slot,
    ClaimLease: Table._begin_lease,
    MoveExpiry: Table._begin_move,
    GiveBackSlot: Table._begin_back,
}
_FINISH: dict[type[Statement], Any] = {
    ClaimSlot: Table._finish_slot,
    ClaimLease: Table._finish_lease,
    MoveExpiry: Table._finish_move,
    GiveBackSlot: Table._finish_back,
}
