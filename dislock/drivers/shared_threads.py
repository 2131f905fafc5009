"""The driver for threads whose locks share their connections: all of one process, on one database and table.

One daemon thread runs an event loop with the group of ``shared``, as long as a lock needs it.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.connections import GOODBYE, decline_signals
from dislock.drivers.shared import Group, Key, key_of
from dislock.drivers.targets import Database
from dislock.errors import DatabaseUnavailableError, DislockError
from dislock.events import SINK, Event, report
from dislock.protocol.sharing import Member, Seat
from dislock.protocol.steps import Steps

T = TypeVar("T")

#: No lock guards it: whoever is interrupted by an exception while it has one may keep it for ever.
_couriers: dict[Key, _Courier] = {}
#: What a forked child has from its parent: never used again, and never closed, because the sockets are shared.
_inherited: list[object] = []


def _forget() -> None:
    # The parent's threads are not here.
    _inherited.append(dict(_couriers))
    _couriers.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that looks names up in daemon threads: none is kept, and none keeps the program from its end."""

    def __init__(self) -> None:
        # Not epoll, which a forked child would share.
        super().__init__(getattr(selectors, "PollSelector", selectors.SelectSelector)())

    def run_in_executor(self, _executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)  # type: ignore[arg-type] # it is one where there is no error
                else:
                    future.set_exception(error)

        def work() -> None:
            decline_signals()
            result, failure = None, None
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - handed over to whoever waits for it
                failure = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(settle, result, failure)

        try:
            threading.Thread(target=work, name="dislock-lookup", daemon=True).start()
        except RuntimeError as error:
            settle(None, OSError(f"no thread for looking up a name: {error}"))
        return future


class _Courier:
    """The thread of all leases of one table. It ends when there is nothing left to do."""

    def __init__(self, key: Key, database: Database, table: list[str]) -> None:
        self._key = key
        self.inbox: deque[Callable[[_Courier], None]] = deque()
        #: To be called once the connections are closed, if nobody needs them.
        self.at_rest: list[Callable[[], None]] = []
        self.group = Group(database, table)
        #: Made in the thread: whoever is interrupted while he starts it leaves nothing to be closed.
        self._loop: _Loop | None = None
        self._news = asyncio.Event()
        self.over = False
        #: Whether others can find it; it does not end before.
        self.listed = False
        self._born = clock()
        self.thread = threading.Thread(target=self._serve, name="dislock-leases", daemon=True)

    def start(self) -> None:
        try:
            self.thread.start()
        except RuntimeError as error:
            # A limit of the system, or an interpreter that is shutting down.
            raise DatabaseUnavailableError(f"no thread could be started for the lock: {error}") from None

    def wake(self) -> None:
        # Without a loop the thread has not begun, and looks into its inbox first.
        if self._loop:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._news.set)

    def _may_end(self) -> bool:
        if self.inbox or not self.group.hub.over or not (self.listed or clock() > self._born + LONGEST_SLEEP):
            return False
        if _couriers.get(self._key) is self:
            del _couriers[self._key]
        # Whoever has put something in since then may not have seen that this one is not listed any more.
        if self.inbox and (other := _couriers.setdefault(self._key, self)) is not self:
            while self.inbox:
                other.inbox.append(self.inbox.popleft())
            other.wake()
        return not self.inbox

    def _serve(self) -> None:
        decline_signals()
        self._loop = _Loop()
        try:
            self._loop.run_until_complete(self._work())
        finally:
            self.over = True
            self._loop.close()

    async def _work(self) -> None:
        while True:
            self._news.clear()
            while self.inbox:
                self.inbox.popleft()(self)
            if self.group.hub.over:
                await self.group.rest()
                waiting, self.at_rest = self.at_rest, []
                for ring in waiting:
                    ring()
                if self._may_end():
                    return
                await asyncio.sleep(0)
            else:
                await self._news.wait()


class _Job(Generic[T]):
    """One run of a protocol in the courier's thread. As a ``threading.Thread`` it is started and joined.

    Any of this may be interrupted by an exception from a signal handler, between any two instructions. So nothing of
    it rests on a lock that is held, and what is done twice is done once.
    """

    def __init__(
        self,
        driver: SharedThreads,
        steps: Steps[T],
        leave: SharedLeave,
        *,
        keeps: bool = False,
        background: bool = False,
    ) -> None:
        self._driver, self._steps, self._keeps = driver, steps, keeps
        self._events: deque[Event] = deque()
        self._context = copy_context()
        if not background and not keeps:
            # Whoever waits logs it: a handler may be slow, or wait for a lock that the waiting thread holds.
            self._context.run(SINK.set, self._tell)
        self._started = False
        self._bell = threading.Lock()
        self._bell.acquire()
        self._begun = False
        self._member: Member | None = None
        self._courier: _Courier | None = None
        self.ended = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._next: _Job[Any] | None = None
        self.failed: Callable[[BaseException], None] | None = None
        #: A request to leave that the steps have not heard of.
        self._asking = leave.requested
        leave.job = self

    # In the thread that waits

    def start(self) -> None:
        # First, so that whoever was interrupted in here takes it for started.
        self._started = True
        try:
            self._courier = self._driver.post(self._go_on)
        except DislockError:
            self.ended = True
            raise

    def ask_to_leave(self) -> None:
        self._asking = True
        if self.is_alive():
            self._courier = self._driver.post(self._go_on)

    def end_before(self, job: _Job[Any]) -> None:
        """Ends, and then starts the other one."""
        self._next = job
        self.ask_to_leave()
        if self.ended:
            job.start()

    def is_alive(self) -> bool:
        return self._started and not self.ended

    def join(self, seconds: float = math.inf) -> None:
        end = clock() + seconds
        while self.is_alive() and (remaining := end - clock()) > 0:
            self._bell.acquire(timeout=min(remaining, LONGEST_SLEEP))
            self.say()
            if self.is_alive() and self._courier and self._courier.over:
                raise DislockError("the thread of the leases has ended")
            if sys.is_finalizing():
                raise DislockError("the interpreter ends, and its other threads have stopped")

    def say(self) -> None:
        while self._events:
            with suppress(IndexError):
                report(self._events.popleft())

    def wait_for_the_thread(self) -> None:
        """A moment for the thread to be gone, if this was the last that it had to do."""
        end, courier = clock() + GOODBYE, self._courier
        while courier and courier.thread.is_alive() and courier.group.hub.over and clock() < end:
            courier.thread.join(0.01)

    # In the courier's thread

    def _go_on(self, courier: _Courier) -> None:
        if not self._begun:
            self._begun = True
            ended = partial(self._end, courier)
            self._member = courier.group.hub.run(
                self._driver.seat, self._steps, ended, self._context, keeps=self._keeps
            )
        if self._asking and self._member:
            self._asking = False
            courier.group.hub.request(self._member)

    def _end(self, courier: _Courier, result: T, error: BaseException | None) -> None:
        self.result, self.error = result, error
        if error is not None and self.failed:
            self.failed(error)
        if courier.group.hub.over:
            courier.at_rest.append(self._ring)
            courier.wake()
        else:
            self._ring()

    def _ring(self) -> None:
        self.ended = True
        if self._next:
            self._next.start()
        self._wake_waiter()

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()


class SharedLeave:
    """A request to leave, for one run of a protocol."""

    requested = False
    job: _Job[Any] | None = None


class SharedThreads:
    """Carries out the steps of one lock in the thread that all locks of its table share."""

    def __init__(self, database: Database, table_parts: list[str]) -> None:
        self._database, self._table = database, table_parts
        self._key = key_of(database, table_parts)
        self._job: _Job[Any] | None = None
        self.seat = Seat()

    @staticmethod
    def leave() -> SharedLeave:
        return SharedLeave()

    @property
    def busy(self) -> bool:
        """Whether a run is under way, or the lock needs its connection."""
        return self.seat.open or (self._job is not None and self._job.is_alive())

    @property
    def waits_in_vain(self) -> bool:
        """Whether this is the thread that would have to do what is waited for."""
        courier = _couriers.get(self._key)
        return courier is not None and courier.thread is threading.current_thread()

    def can_go_on(self, steps: Steps[Any]) -> bool:
        """Whether a run of the steps that was interrupted can be run again."""
        return steps.gi_frame is not None  # type: ignore[attr-defined] # typing's Generator is more than a real one

    def request(self, leave: SharedLeave) -> None:
        """Makes the run that was given ``leave`` come to its end; from any thread."""
        leave.requested = True
        if leave.job:
            leave.job.ask_to_leave()

    def run(self, steps: Steps[T], leave: SharedLeave | None = None) -> T:
        """Runs a protocol to its end.

        An exception that interrupts the waiting (KeyboardInterrupt) is a request to leave, and raised at the end.
        """
        before, interrupt = self._job, None
        if before and before.is_alive():
            # It was interrupted in the midst of its waiting.
            before.ask_to_leave()
            before.join()
        job: _Job[T] = _Job(self, steps, leave or SharedLeave())
        self._job = job
        while not job.ended:
            try:
                job.start()
                job.join()
            except DislockError:
                raise
            except BaseException as error:  # noqa: BLE001 - raised again at the end of the run
                interrupt = error
                job.ask_to_leave()
        job.say()
        job.wait_for_the_thread()
        if interrupt is not None:
            raise interrupt
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value] # without an error it is what the protocol returned

    def run_later(self, steps: Steps[Any], keeper: _Job[Any] | None, _leave: SharedLeave) -> None:
        """Has the steps run once the keeper has ended, without waiting for it."""
        job: _Job[Any] = _Job(self, steps, SharedLeave(), background=True)
        if keeper and keeper.is_alive():
            keeper.end_before(job)
        else:
            job.start()

    def keeper(self, steps: Steps[Any], leave: SharedLeave, failed: Callable[[BaseException], None]) -> _Job[Any]:
        """What runs the steps beside the program once it is started; to be joined when it was requested to leave.

        ``failed`` is called with the error that it ended with, if there is one.
        """
        job = _Job(self, steps, leave, keeps=True)
        job.failed = failed
        return job

    def post(self, action: Callable[[_Courier], None]) -> _Courier:
        """Has the thread do something; starts it if need be."""
        while True:
            courier = _couriers.get(self._key)
            if courier is None or not courier.thread.is_alive():
                if sys.is_finalizing():
                    raise DatabaseUnavailableError("the interpreter ends, and starts no thread for a lock any more")
                if courier:
                    _couriers.pop(self._key, None)
                fresh = _Courier(self._key, self._database, self._table)
                fresh.start()
                courier = _couriers.setdefault(self._key, fresh)
                fresh.listed = True
            courier.inbox.append(action)
            courier.wake()
            # It may just have ended; what is done twice is done once.
            if _couriers.get(self._key) is courier:
                return courier
