"""One acquisition of a set of locks in synchronous code: taken, renewed by a thread, freed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dislock.context import LockContext, Strategy
from dislock.drivers.clock import clock
from dislock.errors import DislockError, Loss
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.schedule import Slot
from dislock.request import Request

#: Seconds that the renewing thread has to end when its block is left.
STOP_SECONDS = 3.0


class Holding:
    """Carries one acquisition out. All of the synchronous interface is made of this; its rules are the protocol's."""

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
        """``supervised``: a command will be stopped on a loss, which must fit in before the row ends.

        ``recorded``: what runs under the locks, for the journal; None: nothing is recorded.
        """
        self.request = Request(context, strategies, supervised=supervised, jitter=jitter, recorded=recorded)
        from dislock.drivers.threads import Leave, Threads

        self._driver = Threads(self.request.database, context.table_parts)
        self._leave_acquiring, self._leave_keeping = Leave(), Leave()
        self._started = started
        self._acquisition: Acquisition | None = None
        self._keeper: threading.Thread | None = None
        self._interrupt: BaseException | None = None

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
        """Makes a pending ``acquire`` give everything back and return False; from any thread."""
        self._driver.request(self._leave_acquiring)

    def acquire(self) -> bool:
        """Takes the locks and starts renewing. False: left on request, everything given back.

        Raises ``LockNotAcquiredError``, ``ConfigurationError``, ``DatabaseUnavailableError`` or
        ``UnknownOutcomeError``; nothing is held then.
        """
        self._acquisition = self.request.begin(self._started)
        try:
            held = self._driver.run(self._acquisition.acquire(), self._leave_acquiring)
            if held and self._acquisition.kept:
                self._begin_keeping()
        except BaseException:
            # Interrupted between two steps, or no thread could be started: what is still held is held for nobody.
            if self._stop_keeping():
                self._driver.run(self._acquisition.release(started=False))
            raise
        return held

    def on_loss(self, listener: Callable[[Loss], None]) -> None:
        """Calls ``listener`` once when the lease is lost, from the renewing thread, or now if it is lost already."""
        self.acquisition.on_loss(listener)

    def release(self, *, started: bool = True, succeeded: bool = False, exit_code: int | None = None) -> Loss | None:
        """Frees the lease, and says if it was lost; in a forked child it does nothing.

        ``started=False``: nothing was started, so the slot is given back too. ``succeeded``: the work succeeded, which
        seals a slot that is consumed by success. At most 5 seconds, or until the lease's stop time for a seal; a
        journal, for which ``exit_code`` is, takes at most 2 more.
        """
        if self.request.forked:
            return None
        if self._stop_keeping():
            steps = self.acquisition.release(started=started, succeeded=succeeded, exit_code=exit_code)
            self._driver.run(steps)
        else:
            self.acquisition.fail("its renewal could not be stopped", succeeded=succeeded)
        if self._interrupt is not None:
            raise self._interrupt
        return self.loss

    def _begin_keeping(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="dislock-renewal", daemon=True)
        try:
            self._keeper.start()
        except RuntimeError as error:
            if not self.acquisition.lease:
                # Only the start of the run is not recorded then, and the record of its end makes up for that.
                self._keeper = None
                return
            raise DislockError(f"no thread could be started for renewing the lease: {error}") from None

    def _stop_keeping(self) -> bool:
        """Whether nobody renews any more. What interrupts it (KeyboardInterrupt) has to wait for the release."""
        if not self._keeper:
            return True
        end = clock() + STOP_SECONDS
        while True:
            try:
                self._driver.request(self._leave_keeping)
                while self._keeper.is_alive() and (remaining := end - clock()) > 0:
                    self._keeper.join(remaining)
                return not self._keeper.is_alive()
            except BaseException as interrupt:  # noqa: BLE001 - raised by release when the lease is free
                again = isinstance(interrupt, RuntimeError) and isinstance(self._interrupt, RuntimeError)
                self._interrupt = interrupt
                if again:
                    # Not to be joined from here: the interpreter ends, or that thread closes a forgotten generator.
                    return not self._keeper.is_alive()

    def _keep(self) -> None:
        try:
            self._driver.run(self.acquisition.keep(), self._leave_keeping)
        except Exception as error:  # noqa: BLE001 - a fault of ours must end as a loss, never as silence
            self.acquisition.fail(f"its renewal failed: {error!r}")
