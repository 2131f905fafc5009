"""The driver for asyncio: tasks of the running event loop carry out the same steps."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from dislock.drivers.addresses import addresses, failure_at, is_name, shares
from dislock.drivers.cancellation import CANCEL_IN_LEAVING, Doubts, cancel, cancel_time
from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.connections import GOODBYE, check_server, options, sever, take_news
from dislock.drivers.failures import EXPECTED
from dislock.drivers.sql import compose, parameters
from dislock.drivers.targets import Database
from dislock.protocol.statements import Row, rows_of
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
    Unanswered,
    Wait,
    Watch,
    together,
)

T = TypeVar("T")


class Leave:
    """A request to leave, for one run of a protocol. Use it in the loop in which the run waits."""

    def __init__(self) -> None:
        self.requested = False
        self._waiter: asyncio.Future[None] | None = None

    def request(self) -> None:
        """Asks the run that has this object to end."""
        self.requested = True
        self.wake()

    def wake(self) -> None:
        """Makes the run look at the clock and at this request again."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done at the next request. A task would be left behind in the loop."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter


class Tasks:
    """Carries out steps for one protocol in one event loop."""

    _clock = staticmethod(clock)

    def __init__(self, database: Database, table_parts: list[str]) -> None:
        self._database = database
        self._table = table_parts
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._doubts = Doubts()

    @staticmethod
    def leave() -> Leave:
        return Leave()

    async def keep(self, steps: Steps[T], leave: Leave) -> T:
        """Runs steps that renew."""
        return await self.run(steps, leave)

    async def run(self, steps: Steps[T], leave: Leave | None = None) -> T:
        """Runs a protocol to its end. A cancellation is a request to leave; it is raised when the run has ended."""
        run = _Run(leave or Leave(), self._clock)
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._carry_out(step, run))
        except StopIteration as end:
            result: T = end.value
        finally:
            if run.cancelled is not None:
                raise run.cancelled
        return result

    async def _carry_out(self, step: Step, run: _Run) -> Answer:
        if isinstance(step, Wait):
            await run.wait(None, step.until)
            return Done(leave=run.take_request())
        if isinstance(step, Watch):
            return await self._watch(step, run)
        if isinstance(step, Connect):
            return await self._connect(step, run)
        if isinstance(step, Execute):
            return await self._execute(step, run)
        await self.close()
        return Done(leave=run.take_request())

    async def _connect(self, step: Connect, run: _Run) -> Answer:
        target = self._database.targets[step.target]
        candidates, failures = [target.parameters], []
        if is_name(target.parameters):
            lookup = asyncio.get_running_loop().run_in_executor(None, addresses, target.parameters)
            await run.wait(lookup, step.by, linger=0.0)
            if not lookup.done() or lookup.cancelled() or lookup.exception():
                return self._unreached(lookup, run)
            candidates = lookup.result()
        for candidate, by in shares(candidates, step.by):
            task = _start(_connected(options(candidate, by - clock())))
            # After a request to leave it has a moment to finish, because an open connection can be closed in order.
            await run.wait(task, by, linger=GOODBYE)
            if not task.done():
                task.cancel()
                await run.wait(task, clock() + GOODBYE)
            if task.done() and not task.cancelled() and not task.exception():
                await self.close()
                self._connection = task.result()
                self._doubts = Doubts()
                self._connection.add_notice_handler(self._doubts)
                return Done(leave=run.take_request())
            answer = self._unreached(task, run)
            if len(candidates) == 1:
                return answer
            failures.append(failure_at(target.name, candidate, answer))
            if answer.leave:
                break
        return Failed(together(failures), answer.leave)

    def _unreached(self, work: asyncio.Future[Any], run: _Run) -> Failed | Unanswered:
        """The answer if a look-up or a connection has failed or has not finished."""
        if not work.done():
            work.cancel()
            return Unanswered(run.take_request())
        if work.cancelled():
            _forget(work)
            return Unanswered(run.take_request())
        error = work.exception()
        assert error is not None
        return self._explain(error, run, broken=False)

    async def _execute(self, step: Execute, run: _Run) -> Answer:
        connection = self._connection
        assert connection is not None
        statement, doubts = step.statement, self._doubts

        async def execute() -> tuple[Row, ...]:
            doubts.begin()
            cursor = await connection.execute(compose(statement, self._table, step.journal), parameters(statement))
            return rows_of(statement, await cursor.fetchall() if cursor.description else ())

        task = _start(execute())
        linger = 0.0 if step.queues else LINGER - CANCEL_IN_LEAVING
        await run.wait(task, cancel_time(step.by, clock()), linger=linger)
        if gave_up := not task.done():
            cancel(connection.pgconn)
            await run.wait(task, step.by, linger=CANCEL_IN_LEAVING)
        if not task.done():
            self._connection = None
            await self._abandon(connection, task, run)
            return Unanswered(run.take_request())
        if task.cancelled():
            # The program has cancelled all tasks of the loop. What happened to the statement is unknown.
            self._connection = None
            connection.pgconn.finish()
            return Unanswered(run.take_request())
        if error := task.exception():
            if gave_up and isinstance(error, psycopg.errors.QueryCanceled):
                return Failed(Failure(HAD_TO_WAIT), run.take_request())
            if connection.closed:
                self._connection = None
            return self._explain(error, run, broken=connection.closed, journal=step.journal)
        return Done(task.result(), run.take_request(), doubts.of_answer(cancelled=gave_up))

    async def _watch(self, step: Watch, run: _Run) -> Answer:
        connection = self._connection
        assert connection is not None
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            if not news.done():
                try:
                    take_news(connection.pgconn)
                except psycopg.Error as error:
                    news.set_exception(error)

        loop.add_reader(connection.fileno(), read)
        try:
            await run.wait(news, step.until, linger=0.0)
        finally:
            loop.remove_reader(connection.fileno())
        if news.done() and (error := news.exception()):
            self._connection = None
            connection.pgconn.finish()
            return self._explain(error, run, broken=True)
        news.cancel()
        return Done(leave=run.take_request())

    async def _abandon(self, connection: psycopg.AsyncConnection[Any], task: asyncio.Task[Any], run: _Run) -> None:
        # The task ends with an error that is not the server's, and asyncio logs an error that nobody has retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # If its task is cancelled, psycopg spends up to five seconds on asking the server to cancel the statement. The
        # end of the socket ends the task at once.
        with suppress(psycopg.Error):
            sever(connection.fileno())
        await run.wait(task, clock() + GOODBYE)
        if not task.done():
            task.cancel()
        connection.pgconn.finish()

    def _explain(self, error: BaseException, run: _Run, *, broken: bool, journal: tuple[str, ...] = ()) -> Failed:
        if isinstance(error, EXPECTED):
            if journal:
                return Failed(self._database.journal_failure(error, journal, broken=broken), run.take_request())
            return Failed(self._database.failure(error, self._table, broken=broken), run.take_request())
        raise error

    def drop(self) -> None:
        """Ends the connection without its loop."""
        if self._connection is not None:
            self._connection.pgconn.finish()

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class _Run:
    """The requests to one run of a protocol."""

    def __init__(self, leave: Leave, now: Callable[[], float]) -> None:
        self.leave = leave
        self._clock = now
        self.cancelled: asyncio.CancelledError | None = None

    def take_request(self) -> bool:
        """Whether there was a request to leave; each request is reported once."""
        requested, self.leave.requested = self.leave.requested, False
        return requested

    async def wait(self, task: asyncio.Future[Any] | None, until: float, linger: float | None = None) -> None:
        """Waits for the task, until the moment, or for ``linger`` seconds after a request to leave.

        Without a task the request ends the waiting at once. With a task and ``linger=None`` a request changes nothing.
        """
        while task is None or not task.done():
            if self.leave.requested and (task is None or linger is not None):
                until, linger = min(until, self._clock() + (linger or 0.0)), None
            remaining = until - self._clock()
            if remaining <= 0:
                return
            waiting = {self.leave.waiter()} if task is None else {task, self.leave.waiter()}
            try:
                await asyncio.wait(waiting, timeout=min(remaining, LONGEST_SLEEP), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
                self.leave.requested = True


async def _connected(parameters: dict[str, Any]) -> psycopg.AsyncConnection[Any]:
    connection = await psycopg.AsyncConnection.connect(**parameters)
    try:
        check_server(connection)
    except psycopg.Error:
        await connection.close()
        raise
    return connection


def _forget(task: asyncio.Future[Any]) -> None:
    """Drops what a cancelled attempt to connect still refers to: libpq closes its socket only after that."""
    try:
        task.result()
    except asyncio.CancelledError as cancelled:
        traceback.clear_frames(cancelled.__traceback__)


def _start(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(coroutine)
