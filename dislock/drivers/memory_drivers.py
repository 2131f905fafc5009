"""The drivers for a server in this process: the same steps and the same duties, without a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from dislock.context import LockContext
from dislock.drivers import aio, threads
from dislock.drivers.memory import MemoryServer, Session
from dislock.drivers.surroundings import Surroundings
from dislock.drivers.targets import Database
from dislock.protocol.advisory_statements import Queue
from dislock.protocol.steps import (
    HAD_TO_WAIT,
    LINGER,
    Answer,
    Connect,
    Done,
    Execute,
    Failed,
    Failure,
    Step,
    Steps,
    Wait,
    Watch,
)

T = TypeVar("T")

#: A connection that the test has ended.
ENDED = Failure("the server ended the connection", broken=True)


class InMemory(Surroundings):
    """The clocks and drivers of a server in this process. It has no connections, so no locks share one."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.clock, self.wall = server.clock, server.wall  # type: ignore[method-assign] # the server's are these

    def threads(self, database: Database, context: LockContext, *, shares: bool) -> Any:  # noqa: ARG002
        return MemoryThreads(self._server, database, context)

    def tasks(self, database: Database, context: LockContext, *, shares: bool) -> Any:  # noqa: ARG002
        return MemoryTasks(self._server, database, context)


class _Client:
    """What both drivers share."""

    def __init__(self, server: MemoryServer, database: Database, context: LockContext) -> None:
        self._server, self._context = server, context
        self._name = database.targets[0].parameters["application_name"]
        self.session: Session | None = None
        server.register(self)  # type: ignore[arg-type] # each of the two drivers is one

    def _open(self) -> None:
        self._end()
        self.session = Session(self._context, self._name)

    def _end(self) -> None:
        if self.session:
            session, self.session = self.session, None
            self._server.end(session)

    def _news(self) -> bool:
        """Whether the server has ended the connection."""
        return self.session is not None and self.session.broken

    def _hurried(self) -> bool:
        """Whether the wait should end early: somebody has changed the lease, and its next renewal will notice."""
        return self.session is not None and self.session.disturbed

    def _calm(self) -> None:
        if self.session:
            self.session.disturbed = False

    def _carry_out_now(self, step: Execute, *, leave: Callable[[], bool]) -> Answer:
        assert self.session is not None
        if self._news():
            self._end()
            return Failed(ENDED, leave())
        return Done(self._server.execute(self.session, step), leave())

    def _line_up(self, statement: Queue) -> tuple[float, Callable[[], bool]]:
        """Queues for an advisory lock. Returns until when, and a test for the end of the wait."""
        session = self.session
        assert session is not None
        self._server.queue(session, statement)
        until = self._server.clock() + session.patience
        return until, lambda: session.broken or self._server.holds(session, statement.key)

    def _queued(self, statement: Queue, *, leave: bool) -> Answer:
        assert self.session is not None
        if self._server.holds(self.session, statement.key):
            return Done(leave=leave)
        broken = self._news()
        self._server.end(self.session)
        return Failed(ENDED if broken else Failure(HAD_TO_WAIT, timed_out=True), leave)


class MemoryThreads(_Client, threads.Threads):
    """Carries out the steps of one lock for synchronous code."""

    def __init__(self, server: MemoryServer, database: Database, context: LockContext) -> None:
        threads.Threads.__init__(self, database, context.table_parts)
        self._clock = server.clock
        self._keeper: threading.Thread | None = None
        #: Until this moment the thread that renews has nothing to do.
        self._rests_until = float("-inf")
        _Client.__init__(self, server, database, context)

    @property
    def busy(self) -> bool:
        return self.session is not None

    def keeper(self, steps: Steps[Any], leave: threads.Leave, failed: Callable[[BaseException], None]) -> Any:
        self._keeper = super().keeper(steps, leave, failed)
        return self._keeper

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def settled(self) -> bool:
        keeper = self._keeper
        if keeper is None or not keeper.is_alive() or keeper is threading.current_thread():
            return True
        return not self._news() and not self._hurried() and self._rests_until > self._clock()

    def _carry_out(self, step: Step, run: threads._Run) -> Answer:
        if isinstance(step, Wait):
            self._rest(run, step.until, self._hurried)
            self._calm()
        elif isinstance(step, Watch):
            self._rest(run, step.until, self._news)
            if self._news():
                self._end()
                return Failed(ENDED, run.take_request())
        elif isinstance(step, Connect):
            self._open()
        elif isinstance(step, Execute):
            return self._execute(step, run)
        else:
            self._end()
        return Done(leave=run.take_request())

    def _rest(self, run: threads._Run, until: float, done: Callable[[], bool]) -> None:
        keeps = threading.current_thread() is self._keeper
        if keeps:
            self._rests_until = until
        self._wait(run, until, done)
        if keeps:
            self._rests_until = float("-inf")

    def _execute(self, step: Execute, run: threads._Run) -> Answer:
        if isinstance(step.statement, Queue):
            until, over = self._line_up(step.statement)
            self._wait(run, min(step.by, until), over, linger=LINGER)
            return self._queued(step.statement, leave=run.take_request())
        return self._carry_out_now(step, leave=run.take_request)


class MemoryTasks(_Client, aio.Tasks):
    """Carries out the steps of one lock in one event loop."""

    def __init__(self, server: MemoryServer, database: Database, context: LockContext) -> None:
        aio.Tasks.__init__(self, database, context.table_parts)
        self._clock = server.clock
        self._loop = asyncio.get_running_loop()
        #: The runs that wait, with what each waits for and the future that ends its wait.
        self._waiting: dict[aio._Run, tuple[Callable[[], bool], asyncio.Future[None]]] = {}
        _Client.__init__(self, server, database, context)

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._look)

    def settled(self) -> bool:
        # The caller may block the loop, so nobody can wait for it.
        return True

    def _look(self) -> None:
        for run, (done, news) in list(self._waiting.items()):
            if done() and not news.done():
                news.set_result(None)
            run.leave.wake()

    async def _until(self, run: aio._Run, until: float, done: Callable[[], bool], linger: float = 0.0) -> None:
        news: asyncio.Future[None] = self._loop.create_future()
        self._waiting[run] = (done, news)
        # Also lets other tasks of the loop run, as a real connection does.
        self._loop.call_soon(self._look)
        await run.wait(news, until, linger=linger)
        del self._waiting[run]
        news.cancel()

    async def _carry_out(self, step: Step, run: aio._Run) -> Answer:
        if isinstance(step, Wait):
            await self._until(run, step.until, self._hurried)
            self._calm()
        elif isinstance(step, Watch):
            await self._until(run, step.until, self._news)
            if self._news():
                self._end()
                return Failed(ENDED, run.take_request())
        elif isinstance(step, Connect):
            await self._until(run, step.by, lambda: True)
            self._open()
        elif isinstance(step, Execute):
            return await self._execute(step, run)
        else:
            self._end()
        return Done(leave=run.take_request())

    async def _execute(self, step: Execute, run: aio._Run) -> Answer:
        if isinstance(step.statement, Queue):
            until, over = self._line_up(step.statement)
            await self._until(run, min(step.by, until), over, linger=LINGER)
            return self._queued(step.statement, leave=run.take_request())
        await self._until(run, step.by, lambda: True, linger=LINGER)
        return self._carry_out_now(step, leave=run.take_request)

    async def close(self) -> None:
        self._end()
