"""The locks for asyncio: the names of ``dislock``, as asynchronous context managers.

A task of the running loop renews the lease. A blocked loop cannot renew: if it is blocked for longer than the TTL, the
lease is lost, and leaving the block raises ``LeaseLostError``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from dislock.context import LockContext, Strategy
from dislock.errors import ConfigurationError, LeaseLostError, Loss
from dislock.protocol.acquisition import Acquisition
from dislock.request import Request, name_of, normalize_strategies
from dislock.view import View

__all__ = ["LeaseLock", "LockSession", "ScheduleLock", "acquire_locks", "build_locks", "with_locks"]

P = ParamSpec("P")
R = TypeVar("R")


class LockSession(View[asyncio.Event]):
    """What a guarded block sees of its locks; ``lease_lost`` is an ``asyncio.Event``."""


class AcquiredLocks:
    """Asynchronous context manager over a set of locks. It takes all of them, or raises and holds none. Use it once.

    If the task is cancelled while it enters, the locks that were taken are given back. If it is cancelled while it
    leaves, the lease is freed first.
    """

    def __init__(
        self, context: LockContext, strategies: Iterable[Strategy], *, jitter: bool = False, recorded: str | None = None
    ) -> None:
        self._request = Request(context, strategies, jitter=jitter, recorded=recorded)
        self._keeper: asyncio.Task[None] | None = None
        self._leaving = False

    async def __aenter__(self) -> LockSession:
        acquisition = self._acquisition = self._request.begin()
        self._driver = self._request.make_tasks()
        self._leave: Any = self._driver.leave()
        lost: asyncio.Event | None = None
        try:
            await self._driver.run(acquisition.acquire())
            if acquisition.kept:
                await self._begin_keeping()
            if acquisition.can_be_lost and not self._request.continues:
                event = lost = asyncio.Event()
                acquisition.on_loss(lambda _: event.set())
        except BaseException:
            # Cancelled between two steps: nobody will use what is still held.
            await self._stop_keeping()
            await self._driver.run(acquisition.release(started=False))
            raise
        return LockSession(acquisition, lost)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._request.forked:
            return
        cancelled = await self._stop_keeping()
        await self._driver.run(self._acquisition.release(succeeded=error is None and cancelled is None))
        if cancelled:
            raise cancelled
        self._acquisition.check(error)

    async def _begin_keeping(self) -> None:
        entered = asyncio.current_task()
        while self._keeper is None or self._keeper.cancelled():
            self._keeper = asyncio.get_running_loop().create_task(self._keep(entered))
            # A task that is cancelled before its first step ends without having run: another one is needed.
            await asyncio.sleep(0)

    async def _stop_keeping(self) -> asyncio.CancelledError | None:
        """Ends the renewals. Returns a cancellation that came meanwhile, because it must wait for the release."""
        if self._keeper is None:
            return None
        self._leaving = True
        self._leave.request()
        return await ended(self._keeper)

    async def _keep(self, entered: asyncio.Task[Any] | None) -> None:
        """Renews until the block is left; ``entered`` is the task that entered it."""
        acquisition = self._acquisition
        while True:
            loss, fault = await self._renew(acquisition)
            if not acquisition.can_be_lost:
                # A slot alone: only the start was to be recorded.
                return
            # In a forked child the event loop does not run on, and the lease is the parent's.
            if self._leaving or self._request.forked or loss:
                return
            if not isinstance(fault, asyncio.CancelledError) or entered is None or entered.done():
                break
            # A program that ends cancels all tasks of its loop, but the block's clean-up still needs its lease.
            entered.add_done_callback(lambda _: self._leave.request())
        acquisition.fail(f"its renewal failed: {fault!r}")
        await self._driver.close()

    async def _renew(self, acquisition: Acquisition) -> tuple[Loss | None, BaseException | None]:
        """The loss that ended the renewals; without a loss, the error that did."""
        try:
            loss = await self._driver.keep(acquisition.keep(), self._leave)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it must be reported as a loss
            return None, error
        return loss, None if loss else asyncio.CancelledError("the task that entered the block has ended")


class ScheduleLock(AcquiredLocks):
    """The lock of one schedule slot; see ``dislock.ScheduleLock``."""

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("schedule",))


class LeaseLock(AcquiredLocks):
    """A lease that a task renews while the block runs; see ``dislock.LeaseLock``."""

    def __init__(self, context: LockContext) -> None:
        super().__init__(context, ("lease",))


def acquire_locks(context: LockContext, strategies: Iterable[Strategy]) -> AcquiredLocks:
    """All locks of the strategies in one asynchronous context manager; see ``dislock.acquire_locks``."""
    return AcquiredLocks(context, strategies, jitter=True)


def build_locks(context: LockContext, strategies: Iterable[Strategy]) -> list[AcquiredLocks]:
    """The locks of the strategies, one object each, in the order in which to enter them."""
    kinds = {"schedule": ScheduleLock, "lease": LeaseLock}
    names = normalize_strategies(strategies)
    return [kinds[name](context) if name in kinds else AcquiredLocks(context, (name,)) for name in names]


def with_locks(
    context: LockContext, strategies: Iterable[Strategy]
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorator for a coroutine function: each call takes the locks, as ``acquire_locks`` does.

    If the lease is lost, the coroutine is cancelled and the call raises ``LeaseLostError`` (not under CONTINUE). If the
    call is cancelled or times out, the lease is freed only after the coroutine has ended. Raises ``ConfigurationError``
    for a generator function, and at the call for a function that does not return a coroutine.
    """
    wanted = normalize_strategies(strategies)

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise _unfit(function)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AcquiredLocks(context, wanted, jitter=True, recorded=name_of(function)) as session:
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
        f"dislock.aio.with_locks cannot guard {name}, which is not a coroutine function: use dislock.with_locks for an "
        "ordinary one and acquire_locks inside a generator"
    )


async def _until_lost(work: Coroutine[Any, Any, R], session: LockSession) -> R:
    """The coroutine's result. If the lease is lost first, cancels the coroutine and raises ``LeaseLostError``."""
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
    """Raises the error of the task's own with which it ended, if there is one: a cancellation never masks it."""
    if not task.cancelled() and (error := task.exception()):
        raise error


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits until it has ended, however it ends and however often we are cancelled meanwhile."""
    task.cancel()
    cancelled = await ended(task)
    if not task.cancelled():
        task.exception()
    if cancelled:
        raise cancelled


async def ended(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Waits until the task has ended, however often we are cancelled meanwhile; returns the last cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as again:
            cancelled = again
    return cancelled
