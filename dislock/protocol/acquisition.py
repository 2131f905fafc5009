"""The rules of acquiring, keeping and freeing, once for all drivers. See ``steps`` for what a protocol is.

``docs/decisions.md`` has the why of each rule; ``lease`` has the rules of a lease that is held.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

from dislock.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    Loss,
    SlotOverError,
)
from dislock.protocol.conversation import Conversation
from dislock.protocol.lease import Lease, Terms, lock_timeout
from dislock.protocol.plan import Plan, Senses, SlotPlan
from dislock.protocol.refusals import refused, unknown, written_elsewhere
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import (
    EPOCH,
    MOMENT_TYPES,
    ClaimLease,
    ClaimSlot,
    GiveBackSlot,
    Inspect,
    ReadClock,
    Statement,
    to_micros,
    to_moment,
)
from dislock.protocol.steps import LINGER, Answer, Done, Failed, Steps, Unanswered, Wait, trouble

#: Seconds that freeing may take; with a statement that was in flight, leaving takes at most 5 seconds in all.
LEAVE_SECONDS = 5.0 - LINGER
#: Seconds by which clocks that are kept in time may differ: nothing to warn of, whatever the tolerance.
CLOCK_NOISE = 0.1


class Protocol(Conversation):
    """One acquisition of one set of locks: ``acquire``, then ``keep`` if there is a lease, then ``release``."""

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan.targets, senses)
        self._plan = plan
        self._wall, self._say = senses.wall, senses.say
        self.slot: Slot | None = None
        self.lease: Lease | None = None
        self.token: int | None = None
        self.loss: Loss | None = None

    # Acquiring

    def acquire(self) -> Steps[bool]:
        """Takes the slot, then the lease. True: all is held. False: told to leave.

        Half a set of locks is none: before it returns False or raises, whatever was taken is given back. Raises
        ``LockNotAcquiredError`` (``SlotOverError``), ``ConfigurationError``, ``DatabaseUnavailableError`` or
        ``UnknownOutcomeError``.
        """
        held = False
        try:
            held = yield from self._claim_all()
        except DislockError:
            # Not a finally: steps must not be yielded while a generator is being closed.
            yield from self.release(started=False)
            raise
        if not held:
            yield from self.release(started=False)
        elif self.lease is None:
            yield from self._close()
        return held

    def _claim_all(self) -> Steps[bool]:
        # The delay comes before the first connection: keeping a herd off the database is its purpose.
        if (yield Wait(self._clock() + self._plan.delay)).leave:
            return False
        by = self._clock() + self._plan.connect_timeout
        if self._plan.slot and not (yield from self._claim_slot(self._plan.slot, by)):
            return False
        return not self._plan.lease or (yield from self._claim_lease(self._plan.lease, by))

    def _claim_slot(self, plan: SlotPlan, by: float) -> Steps[bool]:
        while True:
            slot = plan.slot or (yield from self._choose_slot(plan, by))
            if slot is None:
                return False
            answer = yield from self._insist(partial(self._slot_claim, plan.key, slot), by)
            if not isinstance(answer, Done):
                return self._give_up(answer)
            if answer.rows:
                self.slot, self.token = slot, answer.rows[0][0]
                _check_type(answer)
                self._say(logging.INFO, f"{plan.key} is taken until {slot.expires}")
                return not answer.leave
            doubtful = self._doubtful
            found = yield from self._insist(lambda *_: Inspect(plan.key), by)
            refusal = self._refusal(plan.key, slot, found, doubtful=doubtful)
            if not isinstance(refusal, SlotOverError) or plan.slot:
                raise refusal
            if answer.leave or found.leave:
                return False
            # It ended on the way to it, and nobody had it: what can still be started is the current one.
            if self._clock() >= by:
                raise DatabaseUnavailableError(f"no lock within {self._plan.connect_timeout:g} s: {refusal}")

    def _slot_claim(self, key: str, slot: Slot, now: float, by: float) -> ClaimSlot:
        tick, expires = _micros(slot)
        return ClaimSlot(key, self._plan.owner, lock_timeout(now, by), tick, expires)

    def _choose_slot(self, plan: SlotPlan, by: float) -> Steps[Slot | None]:
        """The slot that this process's start belongs to, by the database's clock; None: told to leave."""
        assert plan.schedule is not None
        asked = [(0.0, 0.0)]

        def read_clock(now: float, _: float) -> Statement:
            asked[0] = (now, self._wall())
            return ReadClock()

        answer = yield from self._insist(read_clock, by)
        if not isinstance(answer, Done):
            self._give_up(answer)
            return None
        told, zone = answer.rows[0]
        sent, wall = asked[0]
        if answer.leave:
            return None
        started = told - round((sent - self._plan.started) * 1_000_000)
        slot = plan.schedule.slot(_moment(started), session_zone=zone, tolerance=plan.tolerance)
        if to_micros(slot.expires) <= told:
            # The machine slept, or waited longer than a slot lasts: what can still be started is the current one.
            slot = plan.schedule.slot(_moment(told), session_zone=zone, tolerance=plan.tolerance)
        tolerance = plan.schedule.tolerance(_moment(told), session_zone=zone, tolerance=plan.tolerance)
        self._compare_clocks(told, wall, self._clock() - sent, tolerance)
        return slot

    def _compare_clocks(self, told: int, wall: float, took: float, tolerance: float) -> None:
        """Warns when this host's clock is so wrong that a start could be counted for another tick."""
        # The database read its clock at some moment of the round trip: half of it is the error of the comparison.
        offset = wall + took / 2 - told / 1_000_000
        if abs(offset) - took / 2 > max(tolerance / 2, CLOCK_NOISE):
            self._say(
                logging.WARNING,
                f"this host's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} the database's; "
                f"beyond {tolerance:g} s a start counts for the wrong tick: check time synchronisation on both",
            )

    def _claim_lease(self, terms: Terms, by: float) -> Steps[bool]:
        sent = [0.0]

        def claim(now: float, by: float) -> Statement:
            sent[0] = now
            return ClaimLease(terms.key, terms.owner, lock_timeout(now, by), round(terms.ttl * 1_000_000))

        answer = yield from self._insist(claim, by)
        if not isinstance(answer, Done):
            return self._give_up(answer)
        if not answer.rows:
            doubtful = self._doubtful
            found = yield from self._insist(lambda *_: Inspect(terms.key), by)
            raise self._refusal(terms.key, None, found, doubtful=doubtful)
        acquired, expires, _ = answer.rows[0]
        self.lease = Lease(terms, sent=sent[0], acquired=acquired, expires=expires)
        self.token = acquired
        _check_type(answer)
        self._say(logging.INFO, f"{terms.key} is taken, and renewed every {terms.pause:g} s")
        if self.lease.overdue(self._clock()):
            # Taken, but told so late that it may have ended: a command started now might run beside another's.
            raise DatabaseUnavailableError(
                f"the lease {terms.key} was taken, but the answer came too late to rely on it"
            )
        return not answer.leave

    def _refusal(self, key: str, slot: Slot | None, answer: Answer, *, doubtful: bool) -> DislockError:
        error = refused(key, slot, answer, owner=self._plan.owner, doubtful=doubtful)
        if type(error) is LockNotAcquiredError and (note := written_elsewhere(key, slot, answer)):
            self._say(logging.WARNING, note)
        return error

    def _give_up(self, answer: Failed | Unanswered) -> bool:
        """What a claim without an answer means: False if told to leave, else an error."""
        text = trouble(answer)
        if answer.leave:
            if self._doubtful:
                self._say(logging.WARNING, str(unknown(text)))
            return False
        if isinstance(answer, Failed) and answer.failure.permanent:
            raise ConfigurationError(text)
        if self._doubtful:
            raise unknown(text)
        raise DatabaseUnavailableError(f"no lock within {self._plan.connect_timeout:g} s: {text}")

    # Keeping

    def keep(self) -> Steps[Loss | None]:
        """Renews until told to leave (None), or until there is no time left or no right to go on (why)."""
        lease = self.lease
        # Freed already, where a thread that was just being started was interrupted.
        while lease and not (yield Wait(lease.next_renewal)).leave:
            now = self._clock()
            self.loss = lease.overdue(now)
            if not self.loss:
                answer = yield from self._ask(lease.renewal, lease.try_until(now))
                if not isinstance(answer, Done):
                    self._say(logging.INFO, f"a renewal of {lease.terms.key} failed ({trouble(answer)}); trying again")
                self.loss = lease.learn(answer, self._clock())
                if answer.leave and not self.loss:
                    return None
            if self.loss:
                return self.loss
        return None

    # Freeing

    def release(self, *, started: bool = True) -> Steps[Loss | None]:
        """Frees the lease and says if it turns out to have been lost; ``started=False`` gives the slot back too.

        Takes at most ``LEAVE_SECONDS``, whatever the network does.
        """
        begun = self._clock()
        by = begun + LEAVE_SECONDS
        lease, self.lease = self.lease, None
        if lease and not self.loss:
            self.loss = yield from self._free(lease, begun, by)
        if self.slot and not started:
            yield from self._give_back(self.slot, by)
        yield from self._close()
        return self.loss

    def _free(self, lease: Lease, begun: float, by: float) -> Steps[Loss | None]:
        # A connection of its own, so that freeing does not depend on the state of the one that renewed; but that one
        # will do when there is no other to be had (all of the server's connections are in use, say).
        yield from self._reach(begun + LEAVE_SECONDS / 2 if self._connected else by)
        answer = yield from self._insist(lease.release, by)
        if isinstance(answer, Done):
            told, moved, holder, ends = answer.rows[0]
            if not moved:
                return lease.loss_of_guard(told, holder, ends)
            self._say(logging.INFO, f"{lease.terms.key} is free again")
            return None
        if begun >= lease.stop_time:
            return lease.overdue(begun)
        self._say(
            logging.WARNING,
            f"the lease {lease.terms.key} could not be freed ({trouble(answer)}); it ends by itself within "
            f"{lease.terms.ttl:g} s",
        )
        return None

    def _give_back(self, slot: Slot, by: float) -> Steps[None]:
        assert self._plan.slot is not None
        key = self._plan.slot.key
        tick, expires = _micros(slot)
        answer = yield from self._insist(
            lambda now, by: GiveBackSlot(key, self._plan.owner, lock_timeout(now, by), tick, expires), by, repeat=False
        )
        if not isinstance(answer, Done):
            self._say(
                logging.WARNING,
                f"the slot {key} could not be given back ({trouble(answer)}): nothing was started, and unless the "
                f"statement still arrives it stays taken until {slot.expires}; delete the row with this key to free it",
            )
        self.slot = None


def _check_type(claimed: Done) -> None:
    """Refuses a table that takes a lock and cannot keep it; what was taken is given back as after any error."""
    _, _, kind = claimed.rows[0]
    if kind not in MOMENT_TYPES:
        raise ConfigurationError(
            f"the lock table's column expire_at is of type {kind}: the lock table needs expire_at timestamptz NOT NULL"
        )


def _micros(slot: Slot) -> tuple[int | None, int]:
    return None if slot.tick is None else to_micros(slot.tick), to_micros(slot.expires)


def _moment(micros: int) -> datetime:
    moment = to_moment(micros)
    return EPOCH if moment is None else moment
