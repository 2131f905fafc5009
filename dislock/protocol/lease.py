"""One held lease: what was confirmed, until when it may be relied on, and what an answer means for it.

No I/O and no clock: ``now`` is always given, in seconds of the driver's clock. Moments of the database's clock are
whole microseconds. See ``docs/decisions.md`` for the why of each rule.
"""

from __future__ import annotations

from typing import NamedTuple

from dislock.errors import Loss, LossReason
from dislock.protocol.statements import FreeAndSeal, Moved, MoveExpiry, Sealed, to_moment
from dislock.protocol.steps import NO_ANSWER, Answer, Unanswered, proven, trouble

#: Seconds kept free between the last SIGKILL and the end of the row, for the kernel to carry it out.
MARGIN = 0.2
#: Seconds before the second try of a renewal that failed; doubled at each further one.
BACKOFF = 0.1


class Terms(NamedTuple):
    """How a lease is kept; durations in seconds.

    ``grace`` is None where nothing has to be stopped before the row ends (the library, or the policy CONTINUE): the
    lease then counts as lost at the TTL itself.
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
        """How long after the last confirmed renewal was sent the lease is given up."""
        if self.grace is None:
            return self.ttl
        # A very short lease keeps the margin in proportion, or there would be no time left to hold it.
        return self.ttl - self.stop_grace - min(MARGIN, self.ttl / 10)

    @property
    def pause(self) -> float:
        """Pause between two renewals: as asked, but never so long that a single failure would lose the lease."""
        return min(self.interval, self.stop_after / 2)


class Lease:
    """The state of one acquisition."""

    def __init__(self, terms: Terms, *, sent: float, acquired: int, expires: int) -> None:
        self.terms = terms
        #: When the last confirmed request was sent: everything is counted from before the request left, so the row
        #: never ends earlier than we think, however long the answer took.
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
        """When the lease is given up unless a renewal is confirmed before."""
        return self._sent + self.terms.stop_after

    def renewal(self, now: float, by: float) -> MoveExpiry:
        """The statement that renews, sent now. Each one writes another expiry, so that each can be recognised."""
        expires = self._answered_at + round((now - self._sent + self.terms.ttl) * 1_000_000)
        # When the database's clock was set back: never before the acquisition, or the next holder's token could be
        # smaller than ours. One more than what the release writes, so that the two cannot be taken for each other.
        expires = max(expires, self.token + 2)
        # Two holders with one owner string are told apart by these values alone, hence never one twice.
        while expires in self._known:
            expires += 1
        self._pending = (now, expires)
        return self._move(expires, now, by)

    def release(self, now: float, by: float) -> MoveExpiry:
        """The statement that frees the row, the same at each try, so that a repeated one recognises its own work.

        It writes the moment right after the acquisition: that has passed, so the row is free at once, and it is not
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
        """How long one try may take: a third of the time left, so that a connection that went dead unnoticed is
        replaced while there is still time.
        """
        return now + (self.stop_time - now) / 3

    def learn(self, answer: Answer, now: float) -> Loss | None:
        """Takes in how the last try ended, which may have failed before it was sent; says so if the lease is lost."""
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
            # The last tries have little time; that one was not answered says less than what an earlier one was told.
            if not isinstance(answer, Unanswered):
                self._trouble = trouble(answer)
            if pending:
                # A try without an answer that counts may have moved the row, or may yet: its value is ours as well.
                self._known.append(pending[1])
            self._failures += 1
            backoff = min(self.terms.pause, BACKOFF * 2 ** min(self._failures - 1, 16))
            self.next_renewal = min(now + backoff, self.stop_time)
        return self.overdue(now)

    def overdue(self, now: float) -> Loss | None:
        """The loss by the clock alone: no confirmation within the time that the row can be relied on."""
        if now < self.stop_time:
            return None
        if self._failures:
            why = f"no renewal was confirmed in time: {self._trouble}"
        else:
            why = "it was not renewed in time: this process did not run, or the machine was suspended"
        # Noticed late (the process was stopped, say), what is left of the grace is shorter.
        left = self.stop_time + self.terms.stop_grace - now
        return self._loss(LossReason.UNCONFIRMED, why, max(0.0, left))

    def loss_of_guard(self, row: Moved | Sealed, now: float) -> Loss:
        """The loss that the database stated: the row is no longer this acquisition's."""
        holder, ends = row.holder, row.ends
        # The row may be another's already: hurrying the command's end gains nothing, so it gets its whole grace.
        grace = self.terms.grace or 0.0
        if holder is None or ends is None:
            return self._loss(LossReason.REMOVED, "its row was removed from the table", grace)
        if holder != self.terms.owner or ends not in self._known:
            until = to_moment(ends)
            # A standby that was promoted without the last renewals still names us, with an end of an earlier one.
            how = "changed by others, or by a failover," if holder == self.terms.owner else "changed by others"
            return self._loss(
                LossReason.TAKEN, f"its row was {how} and now names {holder}, until {until or 'infinity'}", grace
            )
        if ends <= row.now:
            # Nobody has taken it yet, so what is left of the grace is shorter here, as in ``overdue``.
            left = max(0.0, self.stop_time + self.terms.stop_grace - now)
            why = "its row ended by the database's clock before it was renewed"
            return self._loss(LossReason.EXPIRED, why, min(grace, left))
        return self._loss(LossReason.TAKEN, "its row was changed by others a moment ago", grace)

    def failed(self, why: str) -> Loss:
        """The loss by a fault of this process: nobody renews any more."""
        return self._loss(LossReason.UNCONFIRMED, why, 0.0)

    def _loss(self, reason: LossReason, why: str, grace: float) -> Loss:
        return Loss(reason, f"the lease {self.terms.key} was lost: {why}", grace)


def lock_timeout(now: float, by: float) -> str:
    """PostgreSQL's ``lock_timeout`` for a statement sent now: a little before its sender stops listening."""
    return f"{max(1, int((by - now) * 900))}ms"
