"""The driver for asyncio whose locks share connections: all locks of one event loop on one database and table.

``Group`` carries out one hub (``protocol.sharing``) in one event loop. Here that is the program's loop; for synchronous
code it is the loop of a thread, see ``shared_courier``.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from dislock.drivers import aio
from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.targets import Database
from dislock.events import report
from dislock.protocol.plan import Senses
from dislock.protocol.sharing import Hub
from dislock.protocol.sharing_lines import Line
from dislock.protocol.sharing_tickets import Member, Seat
from dislock.protocol.steps import Steps

T = TypeVar("T")
Key = tuple[Any, ...]


def key_of(database: Database, table: list[str]) -> Key:
    """What locks must have in common to share a connection: everything about it except the application name."""
    libpq = sorted(item for item in os.environ.items() if item[0].startswith("PG"))
    targets = [
        tuple(sorted((name, value) for name, value in target.parameters.items() if name != "application_name"))
        for target in database.targets
    ]
    return (tuple(table), tuple(targets), tuple(libpq))


class Group:
    """A hub, and two drivers for its two lines, in the running loop."""

    def __init__(self, database: Database, table: list[str]) -> None:
        senses = Senses(clock, time.time, random.random, report)
        self.hub = Hub(tuple(target.name for target in database.targets), senses, self)
        self._make_driver = partial(aio.Tasks, database, table)
        self._drivers: dict[Line, aio.Tasks] = {}
        self._leaves: dict[Line, aio.Leave] = {}
        self._tasks: dict[Line, asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._process = os.getpid()

    def start(self, line: Line) -> None:
        if os.getpid() != self._process:
            # A loop in a forked child is a copy: the connections and the leases are the parent's.
            return
        leave = self._leaves[line] = aio.Leave()
        driver = self._drivers.setdefault(line, self._make_driver())
        task = asyncio.get_running_loop().create_task(driver.run(line.serve(), leave))
        self._tasks[line] = task
        task.add_done_callback(partial(self._ended, line))

    def hurry(self, line: Line) -> None:
        self._leaves[line].request()

    def call_at(self, moment: float) -> None:
        if self._alarm:
            self._alarm.cancel()
        # In slices, because the loop's timer stops while the machine is suspended.
        seconds = min(max(0.0, moment - clock()), LONGEST_SLEEP)
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._tick)

    async def rest(self) -> None:
        """Waits until the connections are closed, if no lock needs them any more."""
        while self.hub.over and (tasks := set(self._tasks.values())):
            await asyncio.wait(tasks)

    def drop(self) -> None:
        """Ends the connections of a loop that was closed."""
        if os.getpid() == self._process:
            for driver in self._drivers.values():
                driver.drop()

    def _tick(self) -> None:
        if os.getpid() == self._process:
            self.hub.tick()

    def _ended(self, line: Line, task: asyncio.Task[None]) -> None:
        if self._tasks.get(line) is task:
            del self._tasks[line]
        error = None if task.cancelled() else task.exception()
        self.hub.stopped(line, error)
        if line not in self.hub.lines:
            del self._drivers[line], self._leaves[line]


_groups: dict[tuple[int, asyncio.AbstractEventLoop, Key], Group] = {}


class Leave:
    """A request to leave, for one run of a protocol."""

    def __init__(self) -> None:
        self.requested = False
        self.on_request: Callable[[], None] | None = None

    def request(self) -> None:
        """Asks the run that has this object to end."""
        self.requested = True
        if self.on_request:
            self.on_request()


class SharedTasks:
    """Carries out the steps of one lock in one event loop, over the connections of all its locks."""

    def __init__(self, database: Database, table_parts: list[str]) -> None:
        self._database, self._table = database, table_parts
        self._seat = Seat()
        self._group: Group | None = None

    def _join(self) -> Group:
        if self._group is None or not self._seat.open:
            # Over a copy: other threads have event loops of their own.
            for where in list(_groups):
                if where[1].is_closed() and (group := _groups.pop(where, None)):
                    group.drop()
            where = (os.getpid(), asyncio.get_running_loop(), key_of(self._database, self._table))
            self._group = _groups.setdefault(where, Group(self._database, self._table))
        return self._group

    @staticmethod
    def leave() -> Leave:
        return Leave()

    async def run(self, steps: Steps[T], leave: Leave | None = None) -> T:
        """Runs a protocol to its end. A cancellation is a request to leave; it is raised when the run has ended."""
        return await self._run(steps, leave, keeps=False)

    async def keep(self, steps: Steps[T], leave: Leave) -> T:
        """The same, for steps that renew: they share their statements with others."""
        return await self._run(steps, leave, keeps=True)

    async def _run(self, steps: Steps[T], leave: Leave | None, *, keeps: bool) -> T:
        group = self._join()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def ended(result: T, error: BaseException | None) -> None:
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        member = group.hub.run(self._seat, steps, ended, keeps=keeps)
        if leave:
            leave.on_request = partial(_leave, group.hub, member, leave)
            if leave.requested:
                leave.on_request()
        cancelled = await _undisturbed(done, partial(group.hub.request, member))
        cancelled = await self._rest() or cancelled
        if cancelled:
            # The cancellation hides how the run ended.
            done.exception()
            raise cancelled
        return done.result()

    async def close(self) -> None:
        """Says that this lock needs no connection any more."""
        if self._group:
            self._group.hub.leave(self._seat)
            await self._rest()

    async def _rest(self) -> asyncio.CancelledError | None:
        assert self._group is not None
        if not self._group.hub.over:
            return None
        rest = asyncio.ensure_future(self._group.rest())
        cancelled = await _undisturbed(rest, lambda: None)
        if self._group.hub.over:
            for where, group in list(_groups.items()):
                if group is self._group:
                    _groups.pop(where, None)
        return cancelled


def _leave(hub: Hub, member: Member, leave: Leave) -> None:
    leave.requested = False
    hub.request(member)


async def _undisturbed(done: asyncio.Future[Any], cancel: Callable[[], None]) -> asyncio.CancelledError | None:
    """Waits until it is done, however often the task is cancelled meanwhile. Returns the last cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as again:
            cancelled = again
            cancel()
    return cancelled
