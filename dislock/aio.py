"""The locks for asyncio: named as those in ``dislock``, as asynchronous context managers.

A lease is renewed by a task of the running loop. A loop that is blocked cannot renew: blocked past the TTL, the lease
is lost, and leaving the block says so.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from dislock.context import LockContext
from dislock.drivers.clock import clock
from dislock.errors import ConfigurationError, LeaseLostError, Loss
from dislock.protocol.acquisition import Protocol
from dislock.request import Planned, crashed, normalize_strategies
from dislock.view import View

__all__ = ["LeaseLock", "LockSession", "ScheduleLock", "acquire_locks", "build_locks", "with_locks"]

P = ParamSpec("P")
R = TypeVar("R")


class LockSession(View[asyncio.Event]):
    """What a guarded block sees of its locks; ``lease_lost`` is an ``asyncio.Event``."""


class AcquiredLocks:
    """Asynchronous context manager over a set of locks: all of them, or an exception and none. To be used once.

    Cancelled while entering, it gives back what was taken; cancelled while leaving, it frees the lease first.
    """

    def __init__(self, context: LockContext, strategies: Iterable[str], *, jitter: bool = False) -> None:
        self._planned = Planned(context, strategies, jitter=jitter)
        self._keeper: asyncio.Task[None] | None = None
        self._leaving = False
        self._reported = False

    async def __aenter__(self) -> LockSession:
        from dislock.drivers.aio import Leave, Tasks

        self._protocol = self._planned.begin()
        self._driver = Tasks(self._planned.database, self._planned.context.table_parts)
        self._leave = Leave()
        self._lost: asyncio.Event | None = None
        try:
            await self._driver.run(self._protocol.acquire())
            if self._protocol.lease:
                if not self._planned.continues:
                    self._lost = asyncio.Event()
                await self._begin_keeping()
        except BaseException:
            # Cancelled between two steps: what is still held is held for nobody.
            await self._stop_keeping()
            await self._driver.run(self._protocol.release(started=False))
            raise
        # A loop that was busy since may have come too late: nothing is begun on a lease whose time is up.
        if self._protocol.lease and (overdue := self._protocol.lease.overdue(clock())):
            self._protocol.loss = overdue
            self._report(overdue)
        return LockSession(self._protocol, self._lost)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._planned.forked:
            return
        cancelled = await self._stop_keeping()
        loss = await self._driver.run(self._protocol.release())
        if loss:
            self._report(loss, over=True)
        if cancelled:
            raise cancelled
        self._planned.check(loss, error)

    async def _begin_keeping(self) -> None:
        entered = asyncio.current_task()
        while self._keeper is None or self._keeper.cancelled():
            self._keeper = asyncio.get_running_loop().create_task(self._keep(self._protocol, entered))
            # A task that is cancelled before its first step never hears of it.
            await asyncio.sleep(0)

    async def _stop_keeping(self) -> asyncio.CancelledError | None:
        """Ends the renewals. A cancellation meanwhile is returned, because it has to wait for the release."""
        cancelled: asyncio.CancelledError | None = None
        if self._keeper:
            self._leaving = True
            self._leave.request()
            while not self._keeper.done():
                try:
                    await asyncio.wait({self._keeper})
                except asyncio.CancelledError as again:
                    cancelled = again
        return cancelled

    async def _keep(self, protocol: Protocol, entered: asyncio.Task[Any] | None) -> None:
        """Renews until the block is left; ``entered`` is the task that entered it."""
        while True:
            loss, fault = await self._renew(protocol)
            # An event loop does not work on in a forked child, and the lease is the parent's.
            if self._leaving or self._planned.forked:
                return
            if not isinstance(fault, asyncio.CancelledError) or entered is None or entered.done():
                break
            # Whoever ends a program cancels all tasks of its loop, and the block's clean-up still needs its lease.
            entered.add_done_callback(lambda _: self._leave.request())
        if fault:
            loss = protocol.loss = crashed(fault, self._planned.context.lease_key)
            await self._driver.close()
        if loss:
            self._report(loss)

    async def _renew(self, protocol: Protocol) -> tuple[Loss | None, BaseException | None]:
        """The loss that ended the renewals, or what else did."""
        try:
            loss = await self._driver.run(protocol.keep(), self._leave)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it must end as a loss, never as silence
            return None, error
        return loss, None if loss else asyncio.CancelledError("the task that entered the block has ended")

    def _report(self, loss: Loss, *, over: bool = False) -> None:
        if not self._reported:
            self._reported = True
            self._planned.report(loss, over=over)
            if self._lost:
                self._lost.set()


class ScheduleLock(AcquiredLocks):
    """The lock of one schedule slot; see ``dislock.ScheduleLock``."""

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("schedule",))


class LeaseLock(AcquiredLocks):
    """A lease for the time of the block, renewed by a task; see ``dislock.LeaseLock``."""

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("lease",))


def acquire_locks(context: LockContext, strategies: Iterable[str]) -> AcquiredLocks:
    """All locks of the strategies in one asynchronous context manager; see ``dislock.acquire_locks``."""
    return AcquiredLocks(context, strategies, jitter=True)


def build_locks(context: LockContext, strategies: Iterable[str]) -> list[ScheduleLock | LeaseLock]:
    """The locks of the strategies, one object each, in the order in which to enter them."""
    kinds: dict[str, type[ScheduleLock | LeaseLock]] = {"schedule": ScheduleLock, "lease": LeaseLock}
    return [kinds[name](context) for name in normalize_strategies(strategies)]


def with_locks(
    context: LockContext, strategies: Iterable[str]
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorator for a coroutine function: each call takes the locks anew.

    When the lease is lost the coroutine is cancelled and ``LeaseLostError`` is raised (not under CONTINUE). When the
    call is cancelled or times out, the coroutine has ended before the lease is freed. Raises ``ConfigurationError`` for
    a generator function, and at the call for any other that makes no coroutine.
    """
    wanted = normalize_strategies(strategies)

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise _unfit(function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with acquire_locks(context, wanted) as session:
                work = function(*args, **kwargs)
                # Only the call shows it: an ordinary function may return a coroutine.
                if not isinstance(work, Coroutine):
                    raise _unfit(function)
                return await _until_lost(work, session)

        return locked

    return decorate


def _unfit(function: Callable[..., Any]) -> ConfigurationError:
    name = getattr(function, "__qualname__", function)
    return ConfigurationError(
        f"dislock.aio.with_locks cannot guard {name}, which is no coroutine function: use dislock.with_locks for an "
        "ordinary one and acquire_locks inside a generator"
    )


async def _until_lost(work: Coroutine[Any, Any, R], session: LockSession) -> R:
    """The coroutine's result; cancelled, and ``LeaseLostError`` raised, if the lease is lost before it has ended."""
    if session.lease_lost is None:
        return await work
    if session.loss:
        work.close()
        raise LeaseLostError(session.loss)
    loop = asyncio.get_running_loop()
    body = loop.create_task(work)
    watch = loop.create_task(session.lease_lost.wait())
    try:
        await asyncio.wait({body, watch}, return_when=asyncio.FIRST_COMPLETED)
        if body.done() or session.loss is None:
            return await body
        await _cancel(body)
        _raise_own(body)
        raise LeaseLostError(session.loss)
    except asyncio.CancelledError:
        await _cancel(body)
        _raise_own(body)
        raise
    finally:
        await _cancel(watch)


def _raise_own(task: asyncio.Task[Any]) -> None:
    """Raises the error with which a cancelled task ended, if it is one of its own: ours never masks it."""
    if not task.cancelled() and (error := task.exception()):
        raise error


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits until it has ended, however it ends and however often we are cancelled meanwhile."""
    task.cancel()
    again: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as cancelled:
            again = cancelled
    if not task.cancelled():
        task.exception()
    if again:
        raise again
