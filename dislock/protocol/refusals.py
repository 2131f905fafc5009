"""Why a claim did not get its row: pure functions of the database's answer."""

from __future__ import annotations

from dislock.context import LEASE_PREFIX, SCHEDULE_PREFIX
from dislock.errors import (
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    SlotOverError,
    UnknownOutcomeError,
)
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import Held, to_micros, to_moment

#: A lease that expires later than ten of our TTLs and an hour from now was probably not written on purpose.
FAR_TTLS, FAR_SECONDS = 10, 3600


def slot_refused(key: str, slot: Slot, held: Held, *, owner: str, doubtful: bool) -> DislockError | None:
    """Why the slot could not be taken: somebody else has it, or it is over. None: nobody has it.

    ``held`` says who has it; ``doubtful``: the answer to an earlier claim was lost.
    """
    holder, ends = held.holder, held.ends
    # The claim whose answer was lost may have taken the row, and our own row may have caused the refusal. A row of
    # another slot says nothing about this one.
    if doubtful and (holder in (None, owner) or ends != to_micros(slot.expires)):
        return unknown(f"the row of {key} names {holder or 'nobody'}")
    # A row that ends with this slot proves that somebody had the slot, even if it is over now.
    if slot.tick and ends == to_micros(slot.expires):
        text = f"{key}: the tick of {slot.shown(slot.tick)} was started by {holder}"
        text += f"; the next one is {slot.shown(slot.expires)}"
        return LockNotAcquiredError(text, key=key, holder=holder, expires_at=to_moment(ends))
    if slot_is_over(slot, held.now):
        return SlotOverError(
            f"{key}: the slot that ends at {slot.shown(slot.expires)} is over by the database's clock", key=key
        )
    if holder is None or ends is None or slot_is_open(slot, ends, held.now):
        return None
    return held_by(key, holder, ends, slot)


def lease_refused(key: str, held: Held, *, owner: str, doubtful: bool) -> DislockError | None:
    """Why the lease could not be taken: somebody else holds it. None: nobody holds it."""
    if doubtful and held.holder in (None, owner):
        return unknown(f"the row of {key} names {held.holder or 'nobody'}")
    if held.holder is None or held.ends is None or held.ends <= held.now:
        return None
    return held_by(key, held.holder, held.ends)


def tick_sealed(key: str, slot: Slot, held: Held) -> LockNotAcquiredError | None:
    """Why no run of a slot that is consumed by success may start: a run has succeeded. None: none has."""
    owner, ends = held.slot_owner, held.slot_ends
    if owner is None or ends is None:
        return None
    # A row that ends with the slot is a seal, even if the slot is over now.
    if ends == to_micros(slot.expires):
        what = f"the tick of {slot.shown(slot.tick)}" if slot.tick else "the slot"
        text = f"{key}: {what} was completed by {owner}; the next one is {slot.shown(slot.expires)}"
        return LockNotAcquiredError(text, key=key, holder=owner, expires_at=to_moment(ends))
    return None if slot_is_open(slot, ends, held.now) else held_by(key, owner, ends, slot)


def slot_is_open(slot: Slot, ends: int, now: int) -> bool:
    """Whether the slot can be taken if its row ends at ``ends``."""
    return ends <= max(now, to_micros(slot.tick) if slot.tick else now)


def slot_is_over(slot: Slot, now: int) -> bool:
    """Whether the slot has ended."""
    return to_micros(slot.expires) <= now


def held_by(key: str, holder: str, ends: int, slot: Slot | None = None) -> LockNotAcquiredError:
    """The refusal by somebody else's row."""
    until = to_moment(ends)
    text = f"{key} is held by {holder} until {slot.shown(until) if slot else until or 'infinity'}"
    return LockNotAcquiredError(text, key=key, holder=holder, expires_at=until)


def held_by_nobody(key: str) -> DatabaseUnavailableError:
    """The error of a claim that was refused although nobody holds the row."""
    return DatabaseUnavailableError(
        f"{key} was refused although nobody holds it: a trigger, a rule or a policy on the lock table may "
        "discard the row"
    )


def slot_written_elsewhere(key: str, slot: Slot, held: Held) -> str | None:
    """What to report if the slot's row cannot come from this schedule."""
    if not (slot.following and held.ends and held.ends > to_micros(slot.following)):
        return None
    return (
        f"{key} is held by {held.holder} until {slot.shown(to_moment(held.ends))} although this schedule's slot ends "
        f"at {slot.shown(slot.expires)}: the row was written by hand, or under another schedule or zone. If that "
        f"schedule is not used any more, dislock --release {job(key)} --slot URL_VARIABLE frees it"
    )


def lease_ends_far_away(key: str, held: Held, ttl: float) -> str | None:
    """What to report if the lease's row expires so late that an ordinary holder cannot have written it."""
    if held.ends is None or held.ends - held.now <= max(FAR_TTLS * ttl, FAR_SECONDS) * 1_000_000:
        return None
    return (
        f"{key} is held by {held.holder} until {to_moment(held.ends) or 'infinity'}, far beyond the TTL of {ttl:g} s: "
        "the row was written by hand, or while the database's clock was ahead. If nobody runs under it, dislock "
        f"--release {job(key)} URL_VARIABLE frees it"
    )


def job(key: str) -> str:
    """The lock key of a row, as a word of a shell."""
    from shlex import quote

    return quote(key.removeprefix(SCHEDULE_PREFIX).removeprefix(LEASE_PREFIX))


def unknown(why: str) -> UnknownOutcomeError:
    """The error of a claim whose answer was lost."""
    return UnknownOutcomeError(
        f"the answer to an acquisition was lost ({why}): whether it took the lock is unknown, so nothing is run; "
        "if it did, the row expires"
    )
