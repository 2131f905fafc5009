"""The thread that does the work of all locks of one database and table, for synchronous code.

A daemon thread runs an event loop with the group of ``shared``. It starts with the first lock that needs it, and ends
when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.connections import decline_signals
from dislock.drivers.shared import Group, Key
from dislock.drivers.targets import Database
from dislock.errors import DatabaseUnavailableError

T = TypeVar("T")

#: No lock guards it: a thread that an exception interrupts could keep the lock for ever.
_couriers: dict[Key, Courier] = {}
#: A forked child keeps its parent's couriers here: never used again, and never closed, because the sockets are shared.
_inherited: list[object] = []


def _forget() -> None:
    # The parent's threads do not exist in this process.
    _inherited.append(dict(_couriers))
    _couriers.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that looks up names in daemon threads, which never keep the program from ending."""

    def __init__(self) -> None:
        # Not epoll: a forked child would share it.
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
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                failure = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(settle, result, failure)

        try:
            threading.Thread(target=work, name="dislock-lookup", daemon=True).start()
        except RuntimeError as error:
            settle(None, OSError(f"no thread for looking up a name: {error}"))
        return future


class Courier:
    """The thread, and what it has to do."""

    def __init__(self, key: Key, database: Database, table: list[str]) -> None:
        self._key = key
        self.inbox: deque[Callable[[Courier], None]] = deque()
        #: Called when the connections are closed, because no lock needs them, or when another one needs them after all.
        self.at_rest: list[Callable[[], None]] = []
        self.group = Group(database, table)
        #: Made in the thread: if the start is interrupted, no loop must be closed.
        self._loop: _Loop | None = None
        self._news = asyncio.Event()
        self.over = False
        #: Why it could not begin.
        self.fault = ""
        #: Whether others can find it. It does not end before that.
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
        # Without a loop the thread has not begun; it will first read its inbox.
        if self._loop:
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._news.set)

    def _may_end(self) -> bool:
        if self.inbox or not self.group.hub.over or not (self.listed or clock() > self._born + LONGEST_SLEEP):
            return False
        if _couriers.get(self._key) is self:
            del _couriers[self._key]
        # Another thread may have added something before it saw that this courier is not listed any more.
        if self.inbox and (other := _couriers.setdefault(self._key, self)) is not self:
            while self.inbox:
                other.inbox.append(self.inbox.popleft())
            other.wake()
        return not self.inbox

    def _serve(self) -> None:
        decline_signals()
        try:
            self._loop = _Loop()
        except OSError as error:  # no file descriptor is left
            self.fault, self.over = str(error), True
            return
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
                self._ring()
                if self._may_end():
                    return
                await asyncio.sleep(0)
            else:
                self._ring()
                await self._news.wait()

    def _ring(self) -> None:
        waiting, self.at_rest = self.at_rest, []
        for ring in waiting:
            ring()


def find(key: Key) -> Courier | None:
    """The courier of that database and table, if there is one."""
    return _couriers.get(key)


def post(key: Key, database: Database, table: list[str], action: Callable[[Courier], None]) -> Courier:
    """Makes the courier do something in its thread; starts the thread if necessary."""
    while True:
        courier = _couriers.get(key)
        if courier is None or not courier.thread.is_alive():
            if sys.is_finalizing():
                raise DatabaseUnavailableError("the interpreter is shutting down and starts no thread for a lock")
            if courier and _couriers.get(key) is courier:
                _couriers.pop(key, None)
            fresh = Courier(key, database, table)
            fresh.start()
            courier = _couriers.setdefault(key, fresh)
            fresh.listed = True
        courier.inbox.append(action)
        courier.wake()
        # The courier may just have ended; then post it again, which does no harm.
        if _couriers.get(key) is courier:
            return courier
