"""The locks for synchronous code. A lease is renewed by a daemon thread until its block is left."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar

from dislock.context import LockContext
from dislock.drivers import clock
from dislock.errors import DislockError, Loss, LossReason
from dislock.planning import Planned, View, crashed, normalize_strategies, refuse_deferred
from dislock.protocol import Protocol
from dislock.slots import Slot

#: Seconds that the renewing thread has to end when its block is left.
STOP_SECONDS = 3.0

P = ParamSpec("P")
R = TypeVar("R")


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


class LockSession(View[threading.Event]):
    """What a guarded block sees of its locks; ``lease_lost`` is a ``threading.Event``."""

    def __init__(self, holding: Holding, lease_lost: threading.Event | None) -> None:
        super().__init__(holding.protocol, lease_lost)
        self._holding = holding

    @property
    def loss(self) -> Loss | None:
        """Why the lease was lost, or None. Known before ``lease_lost`` is set, whoever noticed it."""
        return self._holding.loss


class AcquiredLocks:
    """Context manager over a set of locks: all of them, or an exception and none. To be used once."""

    def __init__(self, context: LockContext, strategies: Iterable[str], *, jitter: bool = False) -> None:
        self._holding = Holding(context, strategies, jitter=jitter)

    def __enter__(self) -> LockSession:
        holding = self._holding
        holding.acquire()
        lost = None
        if holding.protocol.lease and not holding.planned.continues:
            event = lost = threading.Event()
            holding.on_loss(lambda _: event.set())
        return LockSession(holding, lost)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holding.planned.check(self._holding.release(), error)


class ScheduleLock(AcquiredLocks):
    """The lock of one schedule slot: at most one start per tick. It stays taken after the block, until the next tick.

    Needs ``next_run_time``, or ``schedule``, from which the slot is then computed at each entry by the database's
    clock. Raises ``LockNotAcquiredError`` when the slot is taken.
    """

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("schedule",))


class LeaseLock(AcquiredLocks):
    """A lease for the time of the block, renewed by a daemon thread, freed at the end.

    Needs ``run_ttl_seconds`` and ``lease_interval_seconds`` (else ``ConfigurationError``, a ``ValueError``). Raises
    ``LockNotAcquiredError`` when another holds it. When it is lost the block is not interrupted: ``lease_lost`` is set,
    and leaving the block raises ``LeaseLostError`` unless it raised something itself or the policy is CONTINUE.
    """

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("lease",))


def acquire_locks(context: LockContext, strategies: Iterable[str]) -> AcquiredLocks:
    """All locks of the strategies in one context manager: schedule outermost, then lease.

    Waits a random time up to ``jitter_max_seconds`` first. Yields a ``LockSession``. When the lease is refused, the
    slot taken moments before is given back. Losing a lease is told as by ``LeaseLock``.
    """
    return AcquiredLocks(context, strategies, jitter=True)


def build_locks(context: LockContext, strategies: Iterable[str]) -> list[ScheduleLock | LeaseLock]:
    """The locks of the strategies in the order in which to enter them; each opens connections of its own."""
    kinds: dict[str, type[ScheduleLock | LeaseLock]] = {"schedule": ScheduleLock, "lease": LeaseLock}
    return [kinds[name](context) for name in normalize_strategies(strategies)]


def with_locks(context: LockContext, strategies: Iterable[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: each call of the function takes the locks anew, as ``acquire_locks`` does.

    A refused call raises ``LockNotAcquiredError`` and does not run; a call whose lease was lost meanwhile raises
    ``LeaseLostError`` at its end instead of returning.
    """
    wanted = normalize_strategies(strategies)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_deferred(function, "dislock.aio.with_locks")

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with acquire_locks(context, wanted):
                result = function(*args, **kwargs)
                refuse_deferred(function, "dislock.aio.with_locks", result)
                return result

        return locked

    return decorate
