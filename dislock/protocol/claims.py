"""Taking the locks: the slot, then the lease; or the lease, then a look at a slot that is consumed by success."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from dislock.errors import DatabaseUnavailableError, LockNotAcquiredError, SlotOverError
from dislock.events import INFO, WARNING
from dislock.protocol.claiming import VACANT_TRIES, micros_of
from dislock.protocol.lease import lock_timeout
from dislock.protocol.leasing import Leasing
from dislock.protocol.plan import SlotPlan
from dislock.protocol.refusals import held_by_nobody, slot_is_over, slot_written_elsewhere
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import EPOCH, Claimed, ClaimSlot, Clock, ReadClock, to_moment
from dislock.protocol.steps import Done, Steps, Wait, proven

#: Seconds by which synchronised clocks may differ: no reason for a warning, whatever the tolerance.
CLOCK_NOISE = 0.1
#: A start is far from its tick if it is later than this, and later than half the gap between two ticks.
FAR_FROM_TICK = timedelta(minutes=15)


class Claims(Leasing):
    """The first part of an acquisition. What it took is in ``slot`` and ``lease``, also after an error."""

    def _claim_all(self) -> Steps[bool]:
        """True: everything is held. False: it was asked to leave, and something may be held."""
        plan = self._plan
        # The delay comes before the first connection, because it spreads the connections of many hosts.
        if (yield Wait(self._clock() + plan.delay)).leave:
            return False
        began = self._clock()
        if plan.slot and plan.slot.by_success:
            held = yield from self._claim_open_tick(plan.slot, began)
        else:
            held = not plan.slot or (yield from self._claim_slot(plan.slot, began + plan.connect_timeout))
            if held and plan.lease:
                held = yield from self._obtain_lease(plan.lease, began)
        if held and self.lease and self.lease.overdue(self._clock()):
            # The answer came so late that the row may have expired: a command started now could overlap with another.
            raise DatabaseUnavailableError(
                f"the lease {self.lease.terms.key} was taken, but the answer came too late to rely on it"
            )
        return held

    # The slot

    def _claim_slot(self, plan: SlotPlan, by: float) -> Steps[bool]:
        vacant = 0
        while True:
            slot = plan.slot or (yield from self._choose_slot(plan, by))
            if slot is None:
                return False
            answer = yield from self._claim(partial(self._slot_claim, plan.key, slot), by)
            if not isinstance(answer, Done):
                return self._give_up(answer)
            if answer.rows:
                claimed: Claimed = answer.rows[0]
                self.slot, self.token = slot, claimed.now
                self._check_claim(plan.key, answer)
                self._say(
                    "taken", INFO, f"{plan.key} is taken until {slot.shown(slot.expires)}", key=plan.key, tick=slot.tick
                )
                return not answer.leave
            if not self._is_proven(plan.key, answer):
                return False
            found = yield from self._look(plan.key, by)
            if found is None:
                return False
            held, leave = found
            refusal = self._refusal(plan.key, slot, held, doubtful=self._lost_claim)
            if refusal is None and (vacant := vacant + 1) == VACANT_TRIES:
                raise held_by_nobody(plan.key)
            if refusal and (not isinstance(refusal, SlotOverError) or plan.slot):
                if type(refusal) is LockNotAcquiredError and (note := slot_written_elsewhere(plan.key, slot, held)):
                    self._say("row of another schedule", WARNING, note, key=plan.key, holder=held.holder)
                raise refusal
            if leave:
                return False
            # The slot ended before it could be taken, and nobody had it: take the current one.
            if refusal and self._clock() >= by:
                raise DatabaseUnavailableError(f"no lock within {self._plan.connect_timeout:g} s: {refusal}")

    def _slot_claim(self, key: str, slot: Slot, now: float, by: float) -> ClaimSlot:
        tick, expires = micros_of(slot)
        return ClaimSlot(key, self._plan.owner, lock_timeout(now, by), tick, expires)

    def _choose_slot(self, plan: SlotPlan, by: float) -> Steps[Slot | None]:
        """The slot of this process's start, by the database's clock. None: it was asked to leave."""
        assert plan.schedule is not None
        answer = yield from self._insist(lambda *_: ReadClock(), by)
        if not proven(answer):
            self._give_up(answer)
            return None
        if answer.leave:
            return None
        clock: Clock = answer.rows[0]
        zone, tolerance = clock.zone, plan.tolerance
        took = self._clock() - self._sent
        started = clock.now - round((self._sent - self._plan.started) * 1_000_000)
        slot = plan.schedule.slot(_moment(started), session_zone=zone, tolerance=tolerance)
        if slot_is_over(slot, clock.now):
            # The machine slept, or waited for longer than a slot lasts: take the current one.
            slot = plan.schedule.slot(_moment(clock.now), session_zone=zone, tolerance=tolerance)
        tolerance = plan.schedule.tolerance(_moment(clock.now), session_zone=zone, tolerance=tolerance)
        self._compare_clocks(clock.now, took, tolerance)
        self.zone = plan.schedule.zone_name or zone
        if plan.schedule.zone_name is None:
            self._compare_zones(slot, _moment(started))
        return slot

    def _compare_zones(self, slot: Slot, started: datetime) -> None:
        """Warns if a start is so far from its tick that cron probably fires in another zone than the session's."""
        if slot.tick is None:
            return
        late, gap = started - slot.tick, slot.expires - slot.tick
        if late > max(gap / 2, FAR_FROM_TICK):
            self._say(
                "late start",
                WARNING,
                f"this start is {str(late).partition('.')[0]} later than its tick, {slot.shown(slot.tick)}: no time "
                f"zone is set, so the database session's zone ({self.zone}) is used; set CRON_TZ or --time-zone to the "
                "zone in which cron fires",
                tick=slot.tick,
                late_seconds=round(late.total_seconds(), 3),
            )

    def _compare_clocks(self, now: int, took: float, tolerance: float) -> None:
        """Warns if this host's clock is so wrong that a start could count for another tick."""
        # The database read its clock at some moment of the round trip, so half of it is the error of the comparison.
        offset = self._wall() - took / 2 - now / 1_000_000
        if abs(offset) - took / 2 > max(tolerance / 2, CLOCK_NOISE):
            self._say(
                "clock offset",
                WARNING,
                f"this host's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the database's; "
                f"beyond {tolerance:g} s a start can count for the wrong tick: check time synchronisation on both",
                offset_seconds=round(offset, 3),
            )

    # Both, where the slot is consumed by success

    def _claim_open_tick(self, plan: SlotPlan, began: float) -> Steps[bool]:
        """Takes the lease first, then checks that no run of the slot has succeeded."""
        terms, patience = self._plan.lease, max(self._plan.wait, self._plan.connect_timeout)
        assert terms is not None
        slot = plan.slot or (yield from self._choose_slot(plan, began + patience))
        if slot is None or not (yield from self._obtain_lease(terms, began, slot)):
            return False
        assert self.lease is not None
        # A separate statement, sent after the claim was answered: a claim that waited for the transaction that seals
        # the slot still sees the slot's old row in its own snapshot.
        found = yield from self._look(terms.key, min(self._clock() + self._plan.connect_timeout, self.lease.stop_time))
        if found is None:
            return False
        held, leave = found
        self._check_slot(slot, held)
        self.slot = slot
        return not leave


def _moment(micros: int) -> datetime:
    moment = to_moment(micros)
    return EPOCH if moment is None else moment
