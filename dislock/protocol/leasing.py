"""Takes a lease, or waits for one that somebody else holds."""

from __future__ import annotations

from functools import partial

from dislock.errors import (
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    LockWaitEndedError,
    SlotOverError,
)
from dislock.events import INFO, WARNING
from dislock.protocol.claiming import VACANT_TRIES, Claiming
from dislock.protocol.lease import Lease, Terms, lock_timeout
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.refusals import (
    held_by_nobody,
    lease_ends_far_away,
    slot_is_over,
    slot_written_elsewhere,
    tick_sealed,
)
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import Claimed, ClaimLease, Held, to_micros
from dislock.protocol.steps import Answer, Done, Failed, Steps, Wait

#: The longest pause between two looks of a waiter, in seconds; the shortest is half of it.
LOOK_PAUSE = 1.0
#: Seconds after the end of a row at which a waiter looks again, at most.
LOOK_AFTER_END = 0.05
#: Seconds that each look has at least, also the one at the end of a wait.
LAST_LOOK = 1.0


class Leasing(Claiming):
    """The lease of an acquisition, in ``lease`` when it was taken."""

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan, senses)
        self.slot: Slot | None = None
        """The slot of this run. One that is consumed by success is not taken, but sealed at the end."""
        self.lease: Lease | None = None
        self._waiting = False

    def _obtain_lease(self, terms: Terms, began: float, slot: Slot | None = None) -> Steps[bool]:
        """Claims the lease, and waits for it as long as the plan allows, counted from ``began``.

        A waiter claims only what a plain read showed to be free, so waiting costs the holder no row lock and the server
        no write. ``slot`` is one that is consumed by success: each look reads its row too.
        """
        plan = self._plan
        limit = began + plan.wait
        looks_until = began + max(plan.wait, plan.connect_timeout)
        claims = not plan.wait and slot is None
        vacant, vacant_row = 0, None
        while True:
            answer: Answer = Done()
            if claims:
                by = (self._clock() if plan.wait else began) + plan.connect_timeout
                answer = yield from self._claim(partial(self._lease_claim, terms), by)
                if isinstance(answer, Done) and answer.rows:
                    return self._hold_lease(terms, answer)
                # While there is time, look again, whatever happened to the claim.
                if not self._passes(answer, limit) and not self._is_proven(terms.key, answer):
                    return False
            found = yield from self._look(terms.key, max(looks_until, self._clock() + LAST_LOOK))
            if found is None:
                return False
            held, leave = found
            now = self._clock()
            # The row of a claim whose answer was lost expires, so a waiter can wait for that too.
            refusal = self._refusal(terms.key, None, held, doubtful=self._lost_claim and now >= limit)
            lasts = slot or (self.slot if plan.wait else None)
            if lasts:
                self._check_slot(lasts, held, refusal)
                limit = min(limit, now + (to_micros(lasts.expires) - held.now) / 1_000_000)
            if refusal is None and claims and isinstance(answer, Done):
                # The row is the same after each refusal, so nobody had it in between.
                vacant = vacant + 1 if vacant_row == (held.holder, held.ends) else 1
                vacant_row = held.holder, held.ends
                if vacant == VACANT_TRIES:
                    raise held_by_nobody(terms.key)
            claims = refusal is None
            if leave or (refusal and not (yield from self._wait_for(terms, held, refusal, began, limit))):
                return False

    def _passes(self, answer: Answer, limit: float) -> bool:
        permanent = isinstance(answer, Failed) and answer.failure.permanent
        return self._clock() < limit and not answer.leave and not permanent

    def _wait_for(self, terms: Terms, held: Held, refusal: DislockError, began: float, limit: float) -> Steps[bool]:
        """Waits until the next look; raises if the wait has ended. False: it was asked to leave."""
        now = self._clock()
        if now >= limit:
            if note := lease_ends_far_away(terms.key, held, terms.ttl):
                self._say("row far in the future", WARNING, note, key=terms.key, holder=held.holder)
            if self._plan.wait and isinstance(refusal, LockNotAcquiredError):
                raise wait_ended(refusal, now - began)
            raise refusal
        if not self._waiting:
            self._waiting = True
            text = f"{refusal}; waiting for it up to {limit - now:.0f} s"
            self._say("waiting", INFO, text, key=terms.key, holder=held.holder, wait_seconds=round(limit - now, 3))
        return not (yield Wait(min(limit, self._next_look(held, now)))).leave

    def _next_look(self, held: Held, now: float) -> float:
        pause = LOOK_PAUSE * (0.5 + self._chance() / 2)
        assert held.ends is not None
        ends_in = (held.ends - held.now) / 1_000_000
        return now + min(pause, max(0.0, ends_in) + LOOK_AFTER_END * self._chance())

    def _lease_claim(self, terms: Terms, now: float, by: float) -> ClaimLease:
        return ClaimLease(terms.key, terms.owner, lock_timeout(now, by), round(terms.ttl * 1_000_000))

    def _hold_lease(self, terms: Terms, answer: Done) -> bool:
        claimed: Claimed = answer.rows[0]
        self.lease = Lease(terms, sent=self._sent, acquired=claimed.now, expires=claimed.expires)
        self.token = claimed.now
        self._check_claim(terms.key, answer)
        text = f"{terms.key} is taken, and renewed every {terms.pause:g} s"
        self._say("taken", INFO, text, key=terms.key, token=claimed.now)
        return not answer.leave

    def _check_slot(self, slot: Slot, held: Held, refusal: DislockError | None = None) -> None:
        """Raises if no run of the slot may start any more. ``refusal``: who has the lease; None: nobody."""
        assert self._plan.slot is not None
        key, by_success = self._plan.slot.key, self._plan.slot.by_success
        if by_success and (sealed := tick_sealed(key, slot, held)):
            taken = held._replace(holder=held.slot_owner, ends=held.slot_ends)
            if note := slot_written_elsewhere(key, slot, taken):
                self._say("row of another schedule", WARNING, note, key=key, holder=held.slot_owner)
            raise sealed
        if not slot_is_over(slot, held.now):
            return
        text = f"{key}: the slot that ends at {slot.shown(slot.expires)} is over by the database's clock"
        if self._plan.wait and isinstance(refusal, LockNotAcquiredError):
            raise wait_ended(refusal, because=f"; {text}")
        if self._plan.slot.slot:
            raise SlotOverError(text, key=key)
        raise DatabaseUnavailableError(f"{text}, and no run of it has begun here")


def wait_ended(refusal: LockNotAcquiredError, seconds: float | None = None, because: str = "") -> LockWaitEndedError:
    """The error of a wait in which the lock did not become free."""
    waited = "the wait has ended" if seconds is None else f"gave up after {seconds:.0f} s"
    return LockWaitEndedError(
        f"{waited}: {refusal}{because}", key=refusal.key, holder=refusal.holder, expires_at=refusal.expires_at
    )
