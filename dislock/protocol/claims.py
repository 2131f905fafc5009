"""Taking the locks: the slot, the lease, and waiting for a lease that somebody else holds."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from dislock.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    LockWaitEndedError,
    SlotOverError,
)
from dislock.events import INFO, WARNING, Event
from dislock.protocol.conversation import Conversation
from dislock.protocol.lease import Lease, Terms, lock_timeout
from dislock.protocol.plan import Plan, Senses, SlotPlan
from dislock.protocol.refusals import (
    held_by_nobody,
    lease_ends_far_away,
    lease_refused,
    slot_is_over,
    slot_refused,
    slot_written_elsewhere,
    tick_sealed,
    unknown,
)
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import (
    EPOCH,
    MOMENT_TYPES,
    Claimed,
    ClaimLease,
    ClaimSlot,
    Clock,
    Held,
    Inspect,
    ReadClock,
    to_micros,
    to_moment,
)
from dislock.protocol.steps import Answer, Done, Failed, Failure, Steps, Wait, proven, trouble

#: Seconds by which clocks that are kept in time may differ: nothing to warn of, whatever the tolerance.
CLOCK_NOISE = 0.1
#: A start that is later than this, and than half the gap between two ticks, is far from its tick.
FAR_FROM_TICK = timedelta(minutes=15)
#: A claim that is refused although nobody holds the lock is tried this often: a holder may just have left.
VACANT_TRIES = 3
#: The longest pause between two looks of a waiter, in seconds; the shortest is half of it.
LOOK_PAUSE = 1.0
#: Seconds after the end of a row at which a waiter looks again, at most.
LOOK_AFTER_END = 0.05


class Claims(Conversation):
    """The first part of an acquisition. What it took is in ``slot`` and ``lease``, also after an error."""

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan.targets, senses, plan.connect_timeout)
        self._plan = plan
        self._report = senses.report
        self.slot: Slot | None = None
        """The slot of this run; with ``by_success`` it is not taken, and sealed at the end."""
        self.lease: Lease | None = None
        self.token: int | None = None
        self.zone: str | None = None
        """The zone in which the schedule was read; None where there is none."""
        self._waiting = False

    def _say(self, name: str, level: int, message: str, **fields: object) -> None:
        self._report(Event(name, level, message, {"owner": self._plan.owner, **fields}))

    def _claim_all(self) -> Steps[bool]:
        """True: all is held. False: asked to leave, and something may be held."""
        plan = self._plan
        # The delay comes before the first connection: keeping a herd off the database is its purpose.
        if (yield Wait(self._clock() + plan.delay)).leave:
            return False
        by = self._clock() + plan.connect_timeout
        if plan.slot and plan.slot.by_success:
            held = yield from self._claim_open_tick(plan.slot, by)
        else:
            held = not plan.slot or (yield from self._claim_slot(plan.slot, by))
            if held and plan.lease:
                held = yield from self._obtain_lease(plan.lease, by)
        if held and self.lease and self.lease.overdue(self._clock()):
            # Taken, but the answer came so late that it may have ended: a command started now might overlap another.
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
            answer = yield from self._insist(partial(self._slot_claim, plan.key, slot), by)
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
            doubtful = self._doubtful
            found = yield from self._inspect(plan.key, by, answer)
            if found is None:
                return False
            held, leave = found
            refusal = self._refusal(plan.key, slot, held, doubtful=doubtful)
            if refusal is None and (vacant := vacant + 1) == VACANT_TRIES:
                raise held_by_nobody(plan.key)
            if refusal and (not isinstance(refusal, SlotOverError) or plan.slot):
                if type(refusal) is LockNotAcquiredError and (note := slot_written_elsewhere(plan.key, slot, held)):
                    self._say("row of another schedule", WARNING, note, key=plan.key, holder=held.holder)
                raise refusal
            if leave:
                return False
            # It ended on the way to it, and nobody had it: what can still be started is the current one.
            if refusal and self._clock() >= by:
                raise DatabaseUnavailableError(f"no lock within {self._plan.connect_timeout:g} s: {refusal}")

    def _slot_claim(self, key: str, slot: Slot, now: float, by: float) -> ClaimSlot:
        tick, expires = micros_of(slot)
        return ClaimSlot(key, self._plan.owner, lock_timeout(now, by), tick, expires)

    def _choose_slot(self, plan: SlotPlan, by: float) -> Steps[Slot | None]:
        """The slot that this process's start belongs to, by the database's clock; None: asked to leave."""
        assert plan.schedule is not None
        answer = yield from self._insist(lambda *_: ReadClock(), by)
        if not proven(answer):
            self._give_up(answer)
            return None
        if answer.leave:
            return None
        clock: Clock = answer.rows[0]
        zone, tolerance = clock.zone, plan.tolerance
        self.zone = plan.schedule.zone_name or zone
        took = self._clock() - self._sent
        started = clock.now - round((self._sent - self._plan.started) * 1_000_000)
        slot = plan.schedule.slot(_moment(started), session_zone=zone, tolerance=tolerance)
        if slot_is_over(slot, clock.now):
            # The machine slept, or waited longer than a slot lasts: what can still be started is the current one.
            slot = plan.schedule.slot(_moment(clock.now), session_zone=zone, tolerance=tolerance)
        tolerance = plan.schedule.tolerance(_moment(clock.now), session_zone=zone, tolerance=tolerance)
        self._compare_clocks(clock.now, took, tolerance)
        if plan.schedule.zone_name is None:
            self._compare_zones(slot, _moment(started), zone)
        return slot

    def _compare_zones(self, slot: Slot, started: datetime, zone: str) -> None:
        """Warns when a start is so far from its tick that cron seems to fire in another zone than the session's."""
        if slot.tick is None:
            return
        late, gap = started - slot.tick, slot.expires - slot.tick
        if late > max(gap / 2, FAR_FROM_TICK):
            self._say(
                "late start",
                WARNING,
                f"this start is {str(late).partition('.')[0]} later than its tick, {slot.shown(slot.tick)}: no zone is "
                f"given for the schedule, so that of the database session ({zone}) is used; name the one in which cron "
                "fires in CRON_TZ or --time-zone",
                tick=slot.tick,
                late_seconds=round(late.total_seconds(), 3),
            )

    def _compare_clocks(self, now: int, took: float, tolerance: float) -> None:
        """Warns when this host's clock is so wrong that a start could be counted for another tick."""
        # The database read its clock at some moment of the round trip: half of it is the error of the comparison.
        offset = self._wall() - took / 2 - now / 1_000_000
        if abs(offset) - took / 2 > max(tolerance / 2, CLOCK_NOISE):
            self._say(
                "clock offset",
                WARNING,
                f"this host's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the database's; "
                f"beyond {tolerance:g} s a start counts for the wrong tick: check time synchronisation on both",
                offset_seconds=round(offset, 3),
            )

    # The lease

    def _obtain_lease(self, terms: Terms, by: float, slot: Slot | None = None) -> Steps[bool]:
        """Claims the lease, and waits for it as long as the plan allows.

        A waiter claims only what a plain read showed to be free: waiting costs the holder no row lock and the server
        no write. With ``slot``, one that is consumed by success, whoever looks reads its row too.
        """
        began = self._clock()
        until = max(by, began + self._plan.wait)
        claims = not self._plan.wait and slot is None
        answer: Answer = Done()
        vacant, doubtful = 0, False
        while True:
            if claims:
                answer = yield from self._insist(partial(self._lease_claim, terms), until)
                if not isinstance(answer, Done):
                    return self._give_up(answer)
                if answer.rows:
                    return self._hold_lease(terms, answer)
                doubtful = self._doubtful
            found = yield from self._inspect(terms.key, until, answer)
            if found is None:
                return False
            held, leave = found
            if slot:
                self._check_open(slot, held)
            refusal = self._refusal(terms.key, None, held, doubtful=doubtful)
            if refusal is None and claims and (vacant := vacant + 1) == VACANT_TRIES:
                raise held_by_nobody(terms.key)
            claims = refusal is None
            if leave or (refusal and not (yield from self._wait_for(terms, held, refusal, began, slot or self.slot))):
                return False

    def _wait_for(
        self, terms: Terms, held: Held, refusal: DislockError, began: float, slot: Slot | None
    ) -> Steps[bool]:
        """Waits until the next look; raises when there is nothing to wait for any more. False: asked to leave."""
        if type(refusal) is not LockNotAcquiredError:
            raise refusal
        now, wait = self._clock(), self._plan.wait
        limit = began + wait
        if slot:
            # A run of a slot that is over would be nobody's.
            limit = min(limit, now + (to_micros(slot.expires) - held.now) / 1_000_000)
        if now >= limit:
            if note := lease_ends_far_away(terms.key, held, terms.ttl):
                self._say("row far in the future", WARNING, note, key=terms.key, holder=held.holder)
            if not wait:
                raise refusal
            raise LockWaitEndedError(
                f"waited {now - began:.0f} s in vain: {refusal}",
                key=refusal.key,
                holder=refusal.holder,
                expires_at=refusal.expires_at,
            )
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

    # Both, where the slot is consumed by success

    def _claim_open_tick(self, plan: SlotPlan, by: float) -> Steps[bool]:
        """Takes the lease first, then makes sure that no run of the slot has succeeded."""
        terms = self._plan.lease
        assert terms is not None
        slot = plan.slot or (yield from self._choose_slot(plan, by))
        if slot is None or not (yield from self._obtain_lease(terms, by, slot)):
            return False
        # A statement of its own, sent after the claim was answered: a claim that waited for the transaction that
        # seals the slot still sees the slot's old row in its own snapshot.
        answer = yield from self._insist(
            lambda *_: Inspect(terms.key, plan.key), self._clock() + self._plan.connect_timeout
        )
        if not proven(answer):
            return self._give_up(answer)
        self._check_open(slot, answer.rows[0])
        self.slot = slot
        return not answer.leave

    def _check_open(self, slot: Slot, held: Held) -> None:
        """Raises unless a run of the slot may start: nobody has sealed it, and it has not ended."""
        assert self._plan.slot is not None
        key = self._plan.slot.key
        if sealed := tick_sealed(key, slot, held):
            raise sealed
        if slot_is_over(slot, held.now):
            text = f"{key}: the slot that ends at {slot.shown(slot.expires)} is over by the database's clock"
            if self._plan.wait:
                raise LockWaitEndedError(f"the wait has ended: {text}", key=key)
            raise SlotOverError(text, key=key) if self._plan.slot.slot else DatabaseUnavailableError(text)

    # Answers

    def _inspect(self, key: str, by: float, refused: Answer) -> Steps[tuple[Held, bool] | None]:
        """Who holds the lock, and whether to leave; None: asked to leave, and it could not be read.

        ``refused`` is the answer to the claim before it.
        """
        plan = self._plan
        if refused.leave:
            # The answer to nothing else matters to somebody who leaves.
            self._give_up(Failed(Failure("asked to leave"), leave=True))
            return None
        slot_key = plan.slot.key if plan.slot and plan.slot.by_success else ""
        answer = yield from self._insist(lambda *_: Inspect(key, slot_key), by)
        if not proven(answer):
            if not answer.leave and not (isinstance(answer, Failed) and answer.failure.permanent):
                raise DatabaseUnavailableError(f"{key} could not be read: {trouble(answer)}")
            self._give_up(answer)
            return None
        if isinstance(refused, Done) and refused.doubt:
            raise DatabaseUnavailableError(f"{key} was refused, but {refused.doubt}")
        return answer.rows[0], answer.leave

    def _refusal(self, key: str, slot: Slot | None, held: Held, *, doubtful: bool) -> DislockError | None:
        """Why a claim got no row; None: nobody holds the lock."""
        owner = self._plan.owner
        if slot:
            return slot_refused(key, slot, held, owner=owner, doubtful=doubtful)
        return lease_refused(key, held, owner=owner, doubtful=doubtful)

    def _check_claim(self, key: str, answer: Done) -> None:
        """Refuses a claim that took its row and cannot be relied on; what was taken is given back as after an error."""
        claimed: Claimed = answer.rows[0]
        if claimed.kind not in MOMENT_TYPES:
            raise ConfigurationError(
                f"the lock table's column expire_at is of type {claimed.kind}: the lock table needs "
                "expire_at timestamptz NOT NULL"
            )
        if answer.doubt:
            raise DatabaseUnavailableError(f"{key} was taken, but {answer.doubt}; it is given back and nothing is run")

    def _give_up(self, answer: Answer) -> bool:
        """What a claim without an answer means: False if asked to leave, else an error."""
        text = trouble(answer)
        if answer.leave:
            if self._doubtful:
                self._say("unknown outcome", WARNING, str(unknown(text)))
            return False
        if isinstance(answer, Failed) and answer.failure.permanent:
            raise ConfigurationError(text)
        if self._doubtful:
            raise unknown(text)
        raise DatabaseUnavailableError(f"no lock within {self._plan.connect_timeout:g} s: {text}")


def micros_of(slot: Slot) -> tuple[int | None, int]:
    """The slot's tick and end in microseconds since 1970."""
    return None if slot.tick is None else to_micros(slot.tick), to_micros(slot.expires)


def _moment(micros: int) -> datetime:
    moment = to_moment(micros)
    return EPOCH if moment is None else moment
