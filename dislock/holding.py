"""One acquisition of a set of locks in synchronous code: taken, renewed by a thread, freed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dislock.context import LockContext
from dislock.drivers.clock import clock
from dislock.errors import DislockError, Loss, LossReason
from dislock.protocol.acquisition import Protocol
from dislock.protocol.schedule import Slot
from dislock.request import Planned, crashed

#: Seconds that the renewing thread has to end when its block is left.
STOP_SECONDS = 3.0


class Holding:
    """One acquisition of a set of locks. All of the synchronous interface is made of this."""

    def __init__(
        self,
        context: LockContext,
        strategies: Iterable[str],
        *,
        supervised: bool = False,
        jitter: bool = True,
        started: float | None = None,
    ) -> None:
        """``supervised``: a command will be stopped on a loss, which must fit in before the row ends."""
        self.planned = Planned(context, strategies, supervised=supervised, jitter=jitter)
        from dislock.drivers.threads import Leave, Threads

        self._driver = Threads(self.planned.database, context.table_parts)
        self._leave_acquiring, self._leave_keeping = Leave(), Leave()
        self._started = started
        self._protocol: Protocol | None = None
        self._keeper: threading.Thread | None = None
        self._reporting = threading.Lock()
        self._listeners: list[Callable[[Loss], None]] = []
        self._reported: Loss | None = None
        self._interrupt: BaseException | None = None

    @property
    def protocol(self) -> Protocol:
        assert self._protocol is not None, "not acquired"
        return self._protocol

    @property
    def fencing_token(self) -> int | None:
        return self.protocol.token

    @property
    def slot(self) -> Slot | None:
        return self.protocol.slot

    @property
    def loss(self) -> Loss | None:
        return self._reported

    def request_leave(self) -> None:
        """Makes a pending ``acquire`` give everything back and return False; from any thread."""
        self._driver.request(self._leave_acquiring)

    def acquire(self) -> bool:
        """Takes the locks and starts renewing. False: left on request, everything given back.

        Raises ``LockNotAcquiredError``, ``ConfigurationError``, ``DatabaseUnavailableError`` or
        ``UnknownOutcomeError``; nothing is held then.
        """
        self._protocol = self.planned.begin(self._started)
        try:
            held = self._driver.run(self._protocol.acquire(), self._leave_acquiring)
            if held and self._protocol.lease:
                self._begin_keeping()
        except BaseException:
            # Interrupted between two steps, or no thread to be had: what is still held is held for nobody.
            if self._stop_keeping():
                self._driver.run(self._protocol.release(started=False))
            raise
        return held

    def on_loss(self, listener: Callable[[Loss], None]) -> None:
        """Calls back once when the lease is lost, from the renewing thread, or now if it is lost already."""
        # On a busy machine the renewing thread may not have run since: nothing is begun on a lease whose time is up.
        lease = self.protocol.lease
        if lease and (overdue := lease.overdue(clock())):
            self._report(overdue)
        with self._reporting:
            if not self._reported:
                self._listeners.append(listener)
                return
        listener(self._reported)

    def release(self, *, started: bool = True) -> Loss | None:
        """Frees the lease, and says if it was lost; in a forked child it does nothing.

        ``started=False``: nothing was started, so the slot is given back too. At most 5 seconds.
        """
        if self.planned.forked:
            return None
        if not self._stop_keeping():
            self._report(Loss(LossReason.UNCONFIRMED, "the lease was lost: its renewal could not be stopped"))
        elif loss := self._driver.run(self.protocol.release(started=started)):
            self._report(loss, over=True)
        if self._interrupt is not None:
            raise self._interrupt
        return self._reported

    def _begin_keeping(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="dislock-renewal", daemon=True)
        try:
            self._keeper.start()
        except RuntimeError as error:
            raise DislockError(f"no thread to be had for renewing the lease: {error}") from None

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
            loss = self._driver.run(self.protocol.keep(), self._leave_keeping)
        except Exception as error:  # noqa: BLE001 - a fault of ours must end as a loss, never as silence
            loss = self.protocol.loss = crashed(error, self.planned.context.lease_key)
        if loss:
            self._report(loss)

    def _report(self, loss: Loss, *, over: bool = False) -> None:
        with self._reporting:
            if self._reported:
                return
            self._reported = loss
            listeners, self._listeners = self._listeners, []
        # What a guarded block sees must be what its event and its error say.
        self.protocol.loss = loss
        self.planned.report(loss, over=over)
        for listener in listeners:
            listener(loss)
