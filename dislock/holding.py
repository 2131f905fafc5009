"""One acquisition of a set of locks in synchronous code: taken, renewed in the background, freed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from dislock.context import LockContext, Strategy
from dislock.drivers.clock import clock
from dislock.errors import DislockError, Loss
from dislock.events import WARNING, Event, report
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.schedule import Slot
from dislock.protocol.steps import Steps
from dislock.request import Request

#: Seconds within which the renewals must end when their block is left.
STOP_SECONDS = 3.0
#: How often a release that was interrupted is begun again.
MOST_INTERRUPTS = 1000


class Holding:
    """Carries out one acquisition. The synchronous interface is built on this; the rules are the protocol's.

    An exception from a signal handler may come between any two instructions, and must not leave a lock that nobody
    frees. So each step is stored before it begins, and is ended however often that is interrupted.
    """

    def __init__(
        self,
        context: LockContext,
        strategies: Iterable[Strategy],
        *,
        supervised: bool = False,
        jitter: bool = True,
        started: float | None = None,
        recorded: str | None = None,
    ) -> None:
        """``supervised``: a command runs under the locks; on a loss it must be stopped before the row expires.

        ``recorded``: what runs under the locks, for the journal; None: nothing is recorded.
        """
        self.request = Request(context, strategies, supervised=supervised, jitter=jitter, recorded=recorded)
        self._driver: Any = self.request.make_threads()
        self._leave_acquiring, self._leave_keeping = self._driver.leave(), self._driver.leave()
        self._started = started
        self._acquisition: Acquisition | None = None
        self._keeper: Any = None
        self._freed = False

    @property
    def acquisition(self) -> Acquisition:
        assert self._acquisition is not None, "not acquired"
        return self._acquisition

    @property
    def fencing_token(self) -> int | None:
        return self.acquisition.token

    @property
    def slot(self) -> Slot | None:
        return self.acquisition.slot

    @property
    def loss(self) -> Loss | None:
        return self.acquisition.loss

    def request_leave(self) -> None:
        """Makes a pending ``acquire`` give everything back and return False. May be called from any thread."""
        self._driver.request(self._leave_acquiring)

    def begin(self) -> None:
        """Makes the acquisition. Nothing is held yet. Can be called once."""
        self._acquisition = self.request.begin(self._started)

    def acquire(self) -> bool:
        """Takes the locks and starts the renewals. False: it left on request, and everything was given back.

        Raises ``LockNotAcquiredError``, ``ConfigurationError``, ``DatabaseUnavailableError`` or
        ``UnknownOutcomeError``. Nothing is held after an exception.
        """
        if self._acquisition is None:
            self.begin()
        acquisition = self.acquisition
        try:
            held: bool = self._driver.run(acquisition.acquire(), self._leave_acquiring)
            if held and acquisition.kept:
                self._keeper = self._driver.keeper(acquisition.keep(), self._leave_keeping, self._failed)
                self._start_keeping()
        except BaseException:
            # Interrupted between two steps, or no thread could be started: nobody will use what is still held.
            self.release(started=False)
            raise
        return held

    def on_loss(self, listener: Callable[[Loss], None]) -> None:
        """Calls ``listener`` once when the lease is lost, from the renewing thread, or now if it is lost already."""
        self.acquisition.on_loss(listener)

    def release(self, *, started: bool = True, succeeded: bool = False, exit_code: int | None = None) -> Loss | None:
        """Frees the lease. Returns its loss, or None. Does nothing in a forked child.

        ``started=False``: nothing was started, so the slot is given back too. ``succeeded``: the work succeeded, which
        seals a slot that is consumed by success. ``exit_code`` is for the journal. It takes at most 5 seconds, or until
        the lease's stop time if it seals, and at most 2 more with a journal.
        """
        if self.request.forked or self._freed or not self._holds():
            return self.loss
        if sys.is_finalizing():
            self._say_that_nobody_frees()
            return self.loss
        interrupt: BaseException | None = None
        steps = self.acquisition.release(started=started, succeeded=succeeded, exit_code=exit_code)
        for _ in range(MOST_INTERRUPTS):
            try:
                self._free(steps, succeeded=succeeded)
            except BaseException as error:  # noqa: BLE001 - raised when the lease is free
                interrupt = error
            if self._freed or not self._driver.can_go_on(steps):
                break
        if interrupt is not None:
            raise interrupt
        return self.loss

    def abandon(self) -> None:
        """Frees locks that nothing refers to any more, without waiting for it."""
        if self._acquisition is None or self.request.forked or self._freed or not self._holds():
            return
        key = self.request.context.lease_key
        text = f"the block under the locks of {self.request.context.lock_key} was never left: their lease is freed"
        report(Event("abandoned", WARNING, text, {"key": key, "owner": self.request.context.owner}))
        self._freed = True
        self._driver.run_later(self.acquisition.release(), self._keeper, self._leave_keeping)

    def _free(self, steps: Steps[Any], *, succeeded: bool) -> None:
        if self._driver.must_not_wait:
            # The thread that closes a forgotten generator may be the one that would have to free its lease.
            self._freed = True
            self._driver.run_later(steps, self._keeper, self._leave_keeping)
        elif self._stop_keeping():
            self._driver.run(steps)
            self._freed = True
        else:
            self._freed = True
            self.acquisition.fail("its renewal could not be stopped", succeeded=succeeded)
            # Nothing is freed after a loss, but the connection is closed.
            self._driver.run_later(steps, self._keeper, self._leave_keeping)

    def _holds(self) -> bool:
        """Whether there may be anything to free."""
        acquisition = self._acquisition
        return acquisition is not None and bool(acquisition.kept or acquisition.slot or self._driver.busy)

    def _start_keeping(self) -> None:
        try:
            self._keeper.start()
        except RuntimeError as error:
            self._keeper = None
            if self.acquisition.can_be_lost:
                raise DislockError(f"no thread could be started for keeping the lock: {error}") from None
            # Only the start of the run is to be recorded.
            self._driver.run(self.acquisition.keep())

    def _stop_keeping(self) -> bool:
        """Stops the renewals. True: nobody renews any more."""
        keeper, end = self._keeper, clock() + STOP_SECONDS
        if not keeper or not keeper.is_alive():
            return True
        self._driver.request(self._leave_keeping)
        while keeper.is_alive() and (remaining := end - clock()) > 0:
            keeper.join(remaining)
        return not keeper.is_alive()

    def _failed(self, error: BaseException) -> None:
        # A fault of this program must be reported as a loss.
        self.acquisition.fail(f"its renewal failed: {error!r}")

    def _say_that_nobody_frees(self) -> None:
        self._freed = True
        if lease := self.acquisition.lease:
            text = f"the interpreter is shutting down, so the lease {lease.terms.key} is not freed; it expires within "
            fields = {"key": lease.terms.key, "owner": lease.terms.owner}
            report(Event("release failed", WARNING, f"{text}{lease.terms.ttl:g} s", fields))
