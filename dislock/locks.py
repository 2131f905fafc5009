"""The locks for synchronous code. A daemon thread renews a lease until its block is left."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar

from dislock.context import LockContext, Strategy
from dislock.holding import Holding
from dislock.request import name_of, normalize_strategies, refuse_deferred
from dislock.view import View

P = ParamSpec("P")
R = TypeVar("R")


class LockSession(View[threading.Event]):
    """What a guarded block sees of its locks; ``lease_lost`` is a ``threading.Event``."""

    _locks: AcquiredLocks | None = None


class AcquiredLocks:
    """Context manager over a set of locks. It takes all of them, or raises and holds none. Use it once."""

    def __init__(
        self, context: LockContext, strategies: Iterable[Strategy], *, jitter: bool = False, recorded: str | None = None
    ) -> None:
        self._holding = Holding(context, strategies, jitter=jitter, recorded=recorded)

    def __enter__(self) -> LockSession:
        holding = self._holding
        holding.begin()
        try:
            holding.acquire()
            lost = None
            if holding.acquisition.can_be_lost and not holding.request.continues:
                event = lost = threading.Event()
                holding.on_loss(lambda _: event.set())
            session = LockSession(holding.acquisition, lost)
            # A reference to the session keeps the locks alive.
            session._locks = self
        except BaseException:
            # An exception from a signal handler: the block is not entered.
            holding.release(started=False)
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holding.release(succeeded=error is None)
        self._holding.acquisition.check(error)

    def __del__(self) -> None:
        # Missing if __init__ refused the settings.
        if holding := self.__dict__.get("_holding"):
            holding.abandon()


class ScheduleLock(AcquiredLocks):
    """The lock of one schedule slot: at most one start per tick. It stays taken after the block, until the next tick.

    Needs ``next_run_time``, or ``schedule``, from which each entry computes the slot by the database's clock. Raises
    ``LockNotAcquiredError`` if the slot is taken.
    """

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("schedule",))


class LeaseLock(AcquiredLocks):
    """A lease that a daemon thread renews while the block runs. It is freed when the block is left.

    Needs ``run_ttl_seconds`` (else ``ConfigurationError``, a ``ValueError``). Raises ``LockNotAcquiredError`` if
    somebody else holds it. A loss does not interrupt the block: ``lease_lost`` is set, and leaving the block raises
    ``LeaseLostError``, unless the block itself raised an error or the policy is CONTINUE.
    """

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("lease",))


def acquire_locks(context: LockContext, strategies: Iterable[Strategy]) -> AcquiredLocks:
    """All locks of the strategies in one context manager: schedule outermost, then lease.

    Waits a random time up to ``jitter_max_seconds`` first. Yields a ``LockSession``. If the lease is refused, the slot
    that was taken just before is given back. A lost lease is reported as by ``LeaseLock``.

    Raises ``LockNotAcquiredError`` if somebody else holds a lock, ``ConfigurationError``, ``DatabaseUnavailableError``
    or ``UnknownOutcomeError``. Nothing is held after an exception.
    """
    return AcquiredLocks(context, strategies, jitter=True)


def build_locks(context: LockContext, strategies: Iterable[Strategy]) -> list[AcquiredLocks]:
    """The locks of the strategies, one object each, in the order in which to enter them."""
    kinds = {"schedule": ScheduleLock, "lease": LeaseLock}
    names = normalize_strategies(strategies)
    return [kinds[name](context) if name in kinds else AcquiredLocks(context, (name,)) for name in names]


def with_locks(context: LockContext, strategies: Iterable[Strategy]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: each call of the function takes the locks, as ``acquire_locks`` does.

    If a lock is refused, the call raises ``LockNotAcquiredError`` and the function does not run. If the lease is lost
    meanwhile, the call raises ``LeaseLostError`` at its end instead of returning.
    """
    wanted = normalize_strategies(strategies)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_deferred(function, "dislock.aio.with_locks")

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with AcquiredLocks(context, wanted, jitter=True, recorded=name_of(function)):
                result = function(*args, **kwargs)
                refuse_deferred(function, "dislock.aio.with_locks", result)
                return result

        return locked

    return decorate
