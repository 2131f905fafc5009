"""What it means that a claim did not get its row: pure functions of what the database said."""

from __future__ import annotations

from dislock.errors import (
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    SlotOverError,
    UnknownOutcomeError,
)
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import to_micros, to_moment
from dislock.protocol.steps import Answer, Done, trouble


def refused(key: str, slot: Slot | None, answer: Answer, *, owner: str, doubtful: bool) -> DislockError:
    """Why a claim got no row: another holds it, as is sure for a lease, or the slot is over.

    ``answer`` is that to the question who holds it; ``doubtful``: the answer to an earlier claim was lost.
    """
    holder, ends, now = _read(answer)
    # The refusal may have come from our own row, taken by the claim whose answer was lost and over by now; whoever
    # holds another slot since then says nothing about this one.
    if doubtful and (holder in (None, owner) or (slot and ends != to_micros(slot.expires))):
        return unknown(f"the row of {key} names {holder or 'nobody that could be read'}")
    if slot and not isinstance(answer, Done):
        return DatabaseUnavailableError(f"{key} is held or over, but which could not be read: {trouble(answer)}")
    until = None if ends is None else to_moment(ends)
    # A row that ends with this schedule's slot says that the slot was somebody's, also when it is over by now.
    if slot and slot.tick and ends == to_micros(slot.expires):
        held = f"the tick of {slot.tick} was started by {holder}; the next one is {slot.expires}"
        return LockNotAcquiredError(f"{key}: {held}", key=key, holder=holder, expires_at=until)
    if slot and now and to_micros(slot.expires) <= now:
        return SlotOverError(f"{key}: the slot that ends at {slot.expires} is over by the database's clock", key=key)
    held = f"is held by {holder} until {until or 'infinity'}" if holder else "was held by another a moment ago"
    return LockNotAcquiredError(f"{key} {held}", key=key, holder=holder, expires_at=until)


def written_elsewhere(key: str, slot: Slot | None, answer: Answer) -> str | None:
    """What to say when the row that refused a claim can be none of this schedule's."""
    holder, ends, _ = _read(answer)
    if not (slot and slot.following and ends and ends > to_micros(slot.following)):
        return None
    return (
        f"{key} is held by {holder} until {to_moment(ends) or 'infinity'} although this schedule's slot ends at "
        f"{slot.expires}: the row was written by hand, or under another schedule or zone. If that is over, delete the "
        "row with this key to free it"
    )


def unknown(why: str) -> UnknownOutcomeError:
    """The error of a claim whose answer was lost."""
    return UnknownOutcomeError(
        f"the answer to an acquisition was lost ({why}): whether it took the lock is unknown, so nothing is run; "
        "if it did, the row ends by itself"
    )


def _read(answer: Answer) -> tuple[str | None, int | None, int | None]:
    """The row's holder, its end and the time now, as far as they are known."""
    return answer.rows[0] if isinstance(answer, Done) else (None, None, None)
