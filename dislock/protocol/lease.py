"""One held lease: what was confirmed, until when it can be relied on, and what an answer means for it.

No I/O and no clock: ``now`` is always an argument, in seconds of the driver's clock. Moments of the database's clock
are whole microseconds. See ``docs/decisions.md`` for the reason of each rule.
"""

from __future__ import annotations

from typing import NamedTuple

from dislock.errors import Loss, LossReason
from dislock.protocol.statements import FreeAndSeal, Moved, MoveExpiry, Sealed, to_moment
from dislock.protocol.steps import NO_ANSWER, Answer, Unanswered, proven, trouble

#: Seconds between SIGKILL and the end of the row: the kernel needs time to carry it out.
MARGIN = 0.2
#: Seconds before the second try of a renewal that failed; doubled at each further try.
BACKOFF = 0.1


class Terms(NamedTuple):
    """How a lease is kept; durations in seconds.

    ``grace`` is None if nothing must be stopped before the row expires (the library, or the policy CONTINUE): the lease
    then counts as lost at the end of the TTL.
    """

    key: str
    owner: str
    ttl: float
    interval: float
    grace: float | None = None

    @property
    def stop_grace(self) -> float:
        """The part of the TTL that stopping a command may take: SIGTERM, this long, SIGKILL."""
        return 0.0 if self.grace is None else min(self.grace, self.ttl / 3)

    @property
    def stop_after(self) -> float:
        """The time from the sending of the last confirmed renewal to the stop time."""
        if self.grace is None:
            return self.ttl
        # The margin of a very short lease is smaller, or there would be no time left to hold it.
        return self.ttl - self.stop_grace - min(MARGIN, self.ttl / 10)

    @property
    def pause(self) -> float:
        """The pause between two renewals: the interval, but never so long that one failure would lose the lease."""
        return min(self.interval, self.stop_after / 2)


class Lease:
    """The state of one acquisition."""

    def __init__(self, terms: Terms, *, sent: float, acquired: int, expires: int) -> None:
        self.terms = terms
        #: When the last confirmed request was sent. Everything is counted from this moment, so the row never expires
        #: earlier than this process assumes, however long the answer took.
        self._sent = sent
        self._answered_at = acquired
        self._known = [expires]
        self._pending: tuple[float, int] | None = None
        self._failures = 0
        self._trouble = NO_ANSWER
        self.token = acquired
        self.next_renewal = sent + terms.pause

    @property
    def stop_time(self) -> float:
        """When the lease counts as lost unless a renewal is confirmed before."""
        return self._sent + self.terms.stop_after

    def renewal(self, now: float, by: float) -> MoveExpiry:
        """The statement that renews, sent now. Each one writes another end, so that each can be recognised."""
        expires = self._answered_at + round((now - self._sent + self.terms.ttl) * 1_000_000)
        # The database's clock may have been set back. The end is never before the acquisition, or the next holder's
        # token could be smaller than ours; and it is later than what the release writes, to tell the two apart.
        expires = max(expires, self.token + 2)
        # Only these values distinguish two holders with the same owner string, so none is used twice.
        while expires in self._known:
            expires += 1
        self._pending = (now, expires)
        return self._move(expires, now, by)

    def release(self, now: float, by: float) -> MoveExpiry:
        """The statement that frees the row. It is the same at each try, so that a repeated one recognises its own work.

        It writes the moment right after the acquisition. That has passed, so the row is free at once. And it is not
        before the acquisition, so the next fencing token is larger even if the database's clock was set back.
        """
        return self._move(self.token + 1, now, by)

    def seal(self, now: float, by: float, slot_key: str, slot_expires: int) -> FreeAndSeal:
        """The statement that frees the row and seals the slot of a run that succeeded; the same at each try."""
        return FreeAndSeal(*self.release(now, by), slot_key, slot_expires)

    def _move(self, expires: int, now: float, by: float) -> MoveExpiry:
        terms = self.terms
        return MoveExpiry(terms.key, terms.owner, lock_timeout(now, by), list(self._known), expires)

    def try_until(self, now: float) -> float:
        """When one try ends: after a third of the time left, so that a dead connection is replaced in time."""
        return now + (self.stop_time - now) / 3

    def learn(self, answer: Answer, now: float) -> Loss | None:
        """Stores how the last try ended, also one that failed before it was sent. Returns the loss, if there is one."""
        pending, self._pending = self._pending, None
        if proven(answer):
            assert pending is not None
            sent, expires = pending
            row: Moved = answer.rows[0]
            if not row.moved:
                return self.loss_of_guard(row, now)
            self._sent, self._answered_at, self._known = sent, row.now, [expires]
            self._failures, self._trouble = 0, NO_ANSWER
            self.next_renewal = sent + self.terms.pause
        else:
            # The last tries have little time. If one is not answered, the error of an earlier one says more.
            if not isinstance(answer, Unanswered):
                self._trouble = trouble(answer)
            if pending:
                # A try without a reliable answer may have moved the row, or may still do so: its value is ours too.
                self._known.append(pending[1])
            self._failures += 1
            backoff = min(self.terms.pause, BACKOFF * 2 ** min(self._failures - 1, 16))
            self.next_renewal = min(now + backoff, self.stop_time)
        return self.overdue(now)

    def overdue(self, now: float) -> Loss | None:
        """The loss by the clock alone: the stop time has passed without a confirmed renewal."""
        if now < self.stop_time:
            return None
        if self._failures:
            why = f"no renewal was confirmed in time: {self._trouble}"
        else:
            why = "it was not renewed in time: this process did not run, or the machine was suspended"
        # If it is noticed late, for example because the process was stopped, less of the grace period is left.
        left = self.stop_time + self.terms.stop_grace - now
        return self._loss(LossReason.UNCONFIRMED, why, max(0.0, left))

    def loss_of_guard(self, row: Moved | Sealed, now: float) -> Loss:
        """The loss that the database reported: the row is no longer this acquisition's."""
        holder, ends = row.holder, row.ends
        # Somebody else may have the row already, so the command gets its whole grace period: a hurry gains nothing.
        grace = self.terms.grace or 0.0
        if holder is None or ends is None:
            return self._loss(LossReason.REMOVED, "its row was removed from the table", grace)
        if holder != self.terms.owner or ends not in self._known:
            why = f"its row was changed by others and now names {holder}, until {to_moment(ends) or 'infinity'}"
            if holder == self.terms.owner:
                # A standby that was promoted without the last renewals has the end of an earlier one.
                why = (
                    f"its row still names this process, but its end was moved to {to_moment(ends) or 'infinity'}: by "
                    "--release, by hand, or by a failover that lost the last renewals"
                )
            return self._loss(LossReason.TAKEN, why, grace)
        if ends <= row.now:
            # Nobody has taken it yet, so only what is left of the grace period counts, as in ``overdue``.
            left = max(0.0, self.stop_time + self.terms.stop_grace - now)
            why = "its row expired by the database's clock before it was renewed"
            return self._loss(LossReason.EXPIRED, why, min(grace, left))
        return self._loss(LossReason.TAKEN, "its row was changed by others a moment ago", grace)

    def failed(self, why: str) -> Loss:
        """The loss by a fault of this process, after which nobody renews."""
        return self._loss(LossReason.UNCONFIRMED, why, 0.0)

    def _loss(self, reason: LossReason, why: str, grace: float) -> Loss:
        return Loss(reason, f"the lease {self.terms.key} was lost: {why}", grace)


def lock_timeout(now: float, by: float) -> str:
    """PostgreSQL's ``lock_timeout`` for a statement sent now: a little before its sender stops listening."""
    return f"{max(1, int((by - now) * 900))}ms"
