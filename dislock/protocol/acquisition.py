"""One acquisition from claim to release: acquiring, keeping, losing and freeing, the same for all drivers.

See ``steps`` for what a protocol is, ``claims`` for how locks are taken, ``lease`` for the rules of a held lease, and
``docs/decisions.md`` for the reason of each rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dislock.errors import LEASE_LOST_EXIT_CODE, DislockError, LeaseLostError, Loss, NotSealedError
from dislock.events import DEBUG, ERROR, INFO, WARNING
from dislock.protocol.claiming import micros_of
from dislock.protocol.lease import Lease, lock_timeout
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.recording import Recording
from dislock.protocol.refusals import job
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import GiveBackSlot, Moved, Sealed
from dislock.protocol.steps import LINGER, Answer, Done, Steps, Wait, proven, trouble

#: Seconds that freeing may take; with a statement that was in flight, leaving takes at most 5 seconds in all.
LEAVE_SECONDS = 5.0 - LINGER
#: Seconds between two reports of a renewal that keeps failing.
REPORT_PAUSE = 60.0


class Acquisition(Recording):
    """One acquisition of one set of locks: ``acquire``, then ``keep`` if ``kept``, then ``release``.

    Only this class decides and stores ``loss``. ``keep`` may run in another thread than the rest; the thread that
    notices a loss first decides it.
    """

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan, senses)
        self._losses: list[Loss] = []
        self._listeners: deque[Callable[[Loss], None]] = deque()
        self._withdrawn = False
        self._failing_since: float | None = None
        self._report_next: float
        #: Whether a run that succeeded has sealed its slot; None: nothing was to be sealed.
        self.sealed: bool | None = None

    def acquire(self) -> Steps[bool]:
        """Takes the slot, then the lease. True: everything is held. False: it was asked to leave.

        Before it returns False or raises, it gives back what was taken. Raises ``LockNotAcquiredError``
        (``LockWaitEndedError``, ``SlotOverError``), ``ConfigurationError``, ``DatabaseUnavailableError`` or
        ``UnknownOutcomeError``.
        """
        try:
            held = yield from self._claim_all()
        except DislockError:
            # No finally: a generator that is being closed must not yield steps.
            yield from self._withdraw()
            raise
        if not held:
            yield from self._withdraw()
        elif not self.kept:
            yield from self._close()
        return held

    def _withdraw(self) -> Steps[None]:
        """Gives back what was taken. Nothing has run on it, so its loss is not reported."""
        self._withdrawn = True
        yield from self.release(started=False)

    @property
    def can_be_lost(self) -> bool:
        """Whether something is held that can be lost while the work runs."""
        return self.lease is not None

    @property
    def kept(self) -> bool:
        """Whether there is something to do while the work runs: a lease to renew, or a start to record."""
        return self.can_be_lost or self._plan.journal is not None

    # Losing

    @property
    def loss(self) -> Loss | None:
        """Why the lease was lost, or None. The first loss counts, and it never changes."""
        return self._losses[0] if self._losses else None

    def on_loss(self, listener: Callable[[Loss], None]) -> None:
        """Calls ``listener`` once when the lease is lost, in the thread that notices it, or now if it is lost already.

        It looks at the clock first: on a busy machine the stop time may have passed since the claim.
        """
        self._listeners.append(listener)
        if self.lease and (overdue := self.lease.overdue(self._clock())):
            self._lose(overdue)
        if self.loss:
            self._notify(self.loss)

    def fail(self, why: str, *, succeeded: bool = False) -> None:
        """Makes the lease count as lost, because a fault of this process has ended its renewals.

        ``succeeded``: the work succeeded under it, and its slot cannot be sealed.
        """
        if self.lease:
            self._lose(self.lease.failed(why))
        if self._to_seal(succeeded=succeeded):
            self._not_sealed()

    @property
    def void(self) -> bool:
        """Whether nobody may rely on the work: its lease was lost (not under CONTINUE), or its slot is not sealed."""
        return self.sealed is False or (self.loss is not None and not self._plan.continues)

    def check(self, error: BaseException | None = None) -> None:
        """Raises if work succeeded on a lost lease, or its slot is not sealed; ``error`` is never masked."""
        if error is not None:
            return
        if self.loss and not self._plan.continues:
            raise LeaseLostError(self.loss)
        if self.sealed is False:
            raise NotSealedError(
                "the block succeeded, but its slot was not sealed: another host may run this tick again"
            )

    def _lose(self, loss: Loss, *, over: bool = False) -> None:
        """Stores and reports the first loss. ``over``: the work had ended when it was noticed."""
        # Appending is atomic, so two threads agree on which one was first without a lock.
        self._losses.append(loss)
        if self._losses[0] is not loss or self._withdrawn:
            return
        # First of all: what is said may have to wait for its reader, and the command must not run on meanwhile.
        self._notify(loss)
        level = WARNING if self._plan.continues else ERROR
        key = self._plan.lease.key if self._plan.lease else None
        text = loss.sentence + self._consequence(over=over)
        self._say("lost", level, text, key=key, token=self.token, reason=loss.reason.value)

    def _consequence(self, *, over: bool) -> str:
        if self._plan.continues:
            return "" if over else "; the work goes on without it"
        if not self._plan.supervised:
            return ""
        if over:
            return "; the command had ended by then, but another run may have overlapped with it"
        return "; the command is stopped"

    def _notify(self, loss: Loss) -> None:
        while True:
            try:
                listener = self._listeners.popleft()
            except IndexError:
                return
            listener(loss)

    # Keeping

    def keep(self) -> Steps[Loss | None]:
        """Renews until asked to leave (returns None), or until the lease is lost (returns the loss)."""
        lease = self.lease
        if (yield from self._record_start()):
            return None
        if not lease and self._plan.journal:
            yield from self._close()
        # The lease is None if it was freed while this thread was being started.
        while lease and not (yield Wait(lease.next_renewal)).leave:
            now = self._clock()
            loss = lease.overdue(now)
            if not loss:
                answer = yield from self._ask(lease.renewal, lease.try_until(now))
                loss = lease.learn(answer, self._clock())
                if not loss:
                    self._report_renewal(lease, answer)
                    if answer.leave:
                        return None
            if loss:
                self._lose(loss)
                return loss
        return None

    def _report_renewal(self, lease: Lease, answer: Answer) -> None:
        now, key = self._clock(), lease.terms.key
        if proven(answer):
            if self._failing_since is not None:
                took = now - self._failing_since
                self._failing_since = None
                self._say("renewal recovered", INFO, f"{key} is renewed again, after {took:.0f} s", key=key)
            self._say("renewed", DEBUG, f"{key} is renewed", key=key)
            return
        if self._failing_since is None:
            self._failing_since = now
        elif now < self._report_next:
            return
        self._report_next = now + REPORT_PAUSE
        text = f"a renewal of {key} failed ({trouble(answer)}); trying again"
        self._say("renewal failed", INFO, text, key=key, failing_seconds=round(now - self._failing_since, 3))

    # Freeing

    def release(
        self, *, started: bool = True, succeeded: bool = False, exit_code: int | None = None
    ) -> Steps[Loss | None]:
        """Frees the lease and returns its loss, or None. ``started=False`` gives the slot back too.

        ``succeeded`` seals a slot that is consumed by success, and stores the result in ``sealed``: that may take until
        the lease's stop time. Everything else takes at most ``LEAVE_SECONDS``, whatever the network does. After that
        the journal has its own time; ``exit_code`` is for the journal.
        """
        lease, self.lease = self.lease, None
        ended, freed = self._clock(), False
        if slot := self._to_seal(succeeded=succeeded):
            if lease and not self.loss:
                freed = yield from self._seal(lease, slot)
            else:
                self._not_sealed()
        by = self._clock() + LEAVE_SECONDS
        if lease and not self.loss and not freed:
            yield from self._free(lease, ended, by)
        given_back = self.slot if not started and not (self._plan.slot and self._plan.slot.by_success) else None
        if given_back:
            yield from self._give_back(given_back, by)
        if self._plan.journal:
            yield from self._record_outcome(started=started, succeeded=succeeded, exit_code=exit_code)
        if given_back:
            self.slot = None
        yield from self._close()
        return self.loss

    def _record_outcome(self, *, started: bool, succeeded: bool, exit_code: int | None) -> Steps[None]:
        if not started:
            outcome = "not started"
        elif self.loss or self.sealed is False:
            outcome = "lost"
            if exit_code is not None and self.void:
                exit_code = LEASE_LOST_EXIT_CODE
        else:
            outcome = "success" if succeeded else "failure"
        yield from self._record_end(outcome, exit_code)

    def _free(self, lease: Lease, ended: float, by: float) -> Steps[None]:
        """Frees the lease of work that ended at ``ended``."""
        key = lease.terms.key
        # The connection that renewed a moment ago is fast; if it fails, a new one does not depend on its state.
        answer = yield from self._ask_again(lease.release, by, lease.terms.pause)
        if proven(answer):
            row: Moved = answer.rows[0]
            if row.moved:
                self._say("released", INFO, f"{key} is free again", key=key, token=self.token)
            elif self._doubtful and not lease.overdue(ended):
                # An earlier try may have freed it, and another host may have taken it since.
                self._say(
                    "release failed",
                    WARNING,
                    f"the answer to the release of the lease {key} was lost, and its row now names "
                    f"{row.holder or 'nobody'}: most likely the lease was freed, and another run has taken it since",
                    key=key,
                )
            else:
                self._lose(lease.loss_of_guard(row, self._clock()), over=True)
        elif overdue := lease.overdue(ended):
            self._lose(overdue, over=True)
        else:
            self._say(
                "release failed",
                WARNING,
                f"the lease {key} could not be freed ({trouble(answer)}); it expires within {lease.terms.ttl:g} s",
                key=key,
            )

    # Sealing

    def _to_seal(self, *, succeeded: bool) -> Slot | None:
        """The slot that is to be sealed, once."""
        by_success = self._plan.slot is not None and self._plan.slot.by_success
        return self.slot if succeeded and by_success and self.sealed is None else None

    def _not_sealed(self, why: str = "") -> None:
        self.sealed = False
        if why or self._plan.continues:
            # A loss that ends the work was reported as an error already.
            assert self._plan.slot is not None
            key = self._plan.slot.key
            why = why or "the lease was lost"
            text = f"the run succeeded, but {key} was not sealed ({why}): another host may run this tick again"
            self._say("seal failed", WARNING, text, key=key)

    def _seal(self, lease: Lease, slot: Slot) -> Steps[bool]:
        """Frees the lease and seals the slot in one statement. True: nothing is left to free."""
        assert self._plan.slot is not None
        key = self._plan.slot.key
        _, expires = micros_of(slot)
        if self._clock() >= lease.stop_time:
            self._not_sealed("it ended after the stop time of its lease")
            return False
        make = partial(lease.seal, slot_key=key, slot_expires=expires)
        answer = yield from self._ask_again(make, lease.stop_time, lease.terms.pause, prove=True)
        if not proven(answer):
            self._not_sealed(trouble(answer))
            # An answer with a doubt: the lease was freed, with the same doubt as the seal.
            return isinstance(answer, Done) and bool(answer.rows[0].moved)
        row: Sealed = answer.rows[0]
        # A try whose answer was lost may have done both, and another host may have taken the lease since. After the
        # stop time it could just as well be the seal of another process with the same owner string.
        own = self._doubtful and row.slot_owner == self._plan.owner and row.slot_ends == expires
        if row.moved or (own and self._clock() < lease.stop_time):
            self.sealed = True
            text = f"{key} is sealed until {slot.shown(slot.expires)}, and {lease.terms.key} is free again"
            self._say("sealed", INFO, text, key=key, tick=slot.tick, token=self.token)
        else:
            self._lose(lease.loss_of_guard(row, self._clock()), over=True)
            self._not_sealed()
        return True

    # Giving back

    def _give_back(self, slot: Slot, by: float) -> Steps[None]:
        assert self._plan.slot is not None
        key = self._plan.slot.key
        tick, expires = micros_of(slot)
        answer = yield from self._insist(
            lambda now, by: GiveBackSlot(key, self._plan.owner, lock_timeout(now, by), tick, expires),
            by,
            repeat=False,
        )
        if not proven(answer):
            self._say(
                "give-back failed",
                WARNING,
                f"the slot {key} could not be given back ({trouble(answer)}): nothing was started, but it may stay "
                f"taken until {slot.shown(slot.expires)}; dislock --release {job(key)} --slot URL_VARIABLE frees it",
                key=key,
                tick=slot.tick,
            )
