"""What PostgreSQL does with the statements of ``protocol.statements``: the SQL, clause by clause, as Python.

The engine of ``dislock.testing`` and of the simulation.

A statement has two moments. At its start it takes its snapshot. If it needs a row that another transaction has locked,
it waits, and then decides again on the newest version of the row, at that later moment. Which clause belongs to which
moment follows from READ COMMITTED (https://www.postgresql.org/docs/current/transaction-iso.html):

- ``INSERT ... ON CONFLICT DO UPDATE`` computes at the start what it would insert. It locks the row that is in its way,
  whether or not its ``WHERE`` holds, and evaluates ``WHERE`` and ``SET`` when it has the lock. If the row is gone by
  then, it inserts the values of the start.
- ``UPDATE`` first evaluates its ``WHERE`` and its ``SET`` on the snapshot. Without a match it never waits. With a match
  it waits for the lock. If the row was only locked, or its change was undone, the row is then changed without another
  look, so the ``clock_timestamp()`` of the start counts. If the row was changed, both clauses are evaluated again. If
  it was deleted, it is not updated, even if another row took its place.
- The reading part of ``MoveExpiry`` and of ``FreeAndSeal`` shows the snapshot, and the time of the start.
- ``FreeAndSeal`` first locks the lease's row as ``MoveExpiry`` does. Only if it moves that row, it locks the slot's row
  as a claim does, and keeps the first lock while it waits for the second. Others see both changes at once, or neither.
- While a change waits for a standby, nobody sees it, and its row stays locked.

``tests/integration/simulated_model`` compares all of this with a real server.
"""

from __future__ import annotations

from typing import Any

from dislock.protocol.statements import (
    MOMENT_TYPES,
    ClaimLease,
    ClaimSlot,
    FreeAndSeal,
    GiveBackSlot,
    Inspect,
    MoveExpiry,
    ReadClock,
    Statement,
)

Rows = tuple[tuple[Any, ...], ...]


class Row:
    """One row. The object is the same for all versions of the row."""

    __slots__ = ("before", "expire", "holder", "value", "version")

    def __init__(self, value: str, expire: int) -> None:
        self.value = value
        self.expire = expire
        self.version = 0
        #: What others see (value, end, version) while the last change waits for a standby; value None: no row.
        self.before: tuple[str | None, int, int] | None = None
        #: For the watcher of the table: who took the row. PostgreSQL has nothing like it.
        self.holder: Any = None

    def change(self, value: str, expire: int) -> None:
        self.value, self.expire = value, expire
        self.version += 1


class Call:
    """One statement on its way."""

    __slots__ = ("begun", "moves", "row", "seen", "slot_seen", "statement", "version", "wants")

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        #: The time of its start, and what its snapshot had.
        self.begun = 0
        self.row: Row | None = None
        self.version = -1
        self.seen: tuple[str | None, int | None] = (None, None)
        self.slot_seen: tuple[str | None, int | None] = (None, None)
        #: The key of the row that it waits for, or would lock next.
        self.wants: str = getattr(statement, "key", "")
        #: Whether a seal moves the lease's row; None: it has no lock on it yet.
        self.moves: bool | None = None


class Table:
    """The lock table. A watcher overrides ``took``, ``refused``, ``moved`` and ``seals``."""

    def __init__(self, zone: str = "UTC") -> None:
        self.zone = zone
        self.rows: dict[str, Row] = {}

    def begin(self, call: Call, now: int) -> Rows | None:
        """Starts a statement. Returns its result; None: it goes on when it has the lock of its row."""
        rows: Rows | None = _BEGIN[type(call.statement)](self, call, call.statement, now)
        return rows

    def finish(self, call: Call, now: int) -> Rows | None:
        """Goes on with the lock of the row that it wants. None: it also needs the lock of another row."""
        rows: Rows | None = _FINISH[type(call.statement)](self, call, call.statement, now)
        return rows

    def took(self, call: Call, row: Row, now: int) -> None:
        """``call`` takes the row; called before ``value`` and ``expire`` change."""

    def refused(self, call: Call, row: Row, now: int) -> None:
        """``call`` wanted the row and did not get it."""

    def moved(self, call: Call, row: Row, now: int) -> None:
        """``call`` is about to move the row's end."""

    def seals(self, call: Call, row: Row, now: int) -> None:
        """``call`` is about to seal the slot of that row."""

    def snapshot(self, key: str) -> tuple[Row, str, int, int] | None:
        """The row as a statement that starts now sees it, with its version."""
        row = self.rows.get(key)
        if row is None:
            return None
        value, expire, version = row.before or (row.value, row.expire, row.version)
        return None if value is None else (row, value, expire, version)

    def _seen(self, key: str) -> tuple[str | None, int | None]:
        found = self.snapshot(key)
        return (found[1], found[2]) if found else (None, None)

    def _read_clock(self, call: Call, statement: ReadClock, now: int) -> Rows:
        return ((now, self.zone),)

    def _inspect(self, call: Call, statement: Inspect, now: int) -> Rows:
        return ((*self._seen(statement.key), now, *self._seen(statement.slot_key)),)

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

    def is_own(self, value: str, expire: int, statement: MoveExpiry | FreeAndSeal, now: int) -> bool:
        return value == statement.owner and (
            (expire in statement.known and expire > now) or expire == statement.expires
        )

    def _matches(self, call: Call, statement: MoveExpiry | FreeAndSeal, now: int) -> bool:
        """Whether the snapshot has a row that is to be moved, so that its lock is needed."""
        call.begun = now
        if not (found := self.snapshot(statement.key)):
            return False
        call.row, value, expire, call.version = found
        call.seen = (value, expire)
        return self.is_own(value, expire, statement, now)

    def _moves(self, call: Call, statement: MoveExpiry | FreeAndSeal, now: int) -> bool:
        """Whether the row is to be moved; called with its lock."""
        row = self.rows.get(statement.key)
        if row is None or row is not call.row:
            return False
        return row.version == call.version or self.is_own(row.value, row.expire, statement, now)

    def _move(self, call: Call, statement: MoveExpiry | FreeAndSeal, now: int) -> None:
        row = self.rows[statement.key]
        self.moved(call, row, now)
        row.change(row.value, statement.expires)

    def _begin_move(self, call: Call, statement: MoveExpiry, now: int) -> Rows | None:
        return None if self._matches(call, statement, now) else ((now, 0, *call.seen),)

    def _finish_move(self, call: Call, statement: MoveExpiry, now: int) -> Rows:
        if moved := self._moves(call, statement, now):
            self._move(call, statement, now)
        return ((call.begun, int(moved), *call.seen),)

    def _begin_seal(self, call: Call, statement: FreeAndSeal, now: int) -> Rows | None:
        call.slot_seen = self._seen(statement.slot_key)
        return None if self._matches(call, statement, now) else self._unsealed(call, statement, now)

    def _unsealed(self, call: Call, statement: FreeAndSeal, now: int) -> Rows:
        return ((call.begun, 0, *call.seen, 0, *call.slot_seen),)

    def _finish_seal(self, call: Call, statement: FreeAndSeal, now: int) -> Rows | None:
        if call.moves is None:
            call.moves = self._moves(call, statement, now)
            if not call.moves:
                return self._unsealed(call, statement, now)
            call.wants = statement.slot_key
            return None
        sealed = self._seal(call, statement, now)
        self._move(call, statement, now)
        return ((call.begun, 1, *call.seen, sealed, *call.slot_seen),)

    def _seal(self, call: Call, statement: FreeAndSeal, now: int) -> int:
        """Seals the slot, with the lock of its row. The lease's row is not moved yet."""
        slot = self.rows.get(statement.slot_key)
        if slot is None:
            slot = self.rows[statement.slot_key] = Row("", 0)
        elif slot.expire >= statement.slot_expires:
            return 0
        self.seals(call, slot, now)
        slot.change(statement.owner, statement.slot_expires)
        return 1

    def _begin_back(self, call: Call, statement: GiveBackSlot, now: int) -> Rows | None:
        found = self.snapshot(statement.key)
        if not found or found[1:3] != (statement.owner, statement.expires):
            return ()
        call.row, call.begun, call.version = found[0], now, found[3]
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
    FreeAndSeal: Table._begin_seal,
    GiveBackSlot: Table._begin_back,
}
_FINISH: dict[type[Statement], Any] = {
    ClaimSlot: Table._finish_slot,
    ClaimLease: Table._finish_lease,
    MoveExpiry: Table._finish_move,
    FreeAndSeal: Table._finish_seal,
    GiveBackSlot: Table._finish_back,
}
