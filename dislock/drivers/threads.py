"""The driver for threads: each connection has its own daemon thread, which can be abandoned when it hangs.

Only a separate thread can keep a deadline for everything that libpq does: looking up names and authentication block,
and have no time limit.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import psycopg

from dislock.drivers.addresses import addresses, failure_at, is_name, shares
from dislock.drivers.cancellation import CANCEL_IN_LEAVING, Doubts, cancel, cancel_time
from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.connections import GOODBYE, check_server, decline_signals, options, sever, take_news
from dislock.drivers.failures import EXPECTED
from dislock.drivers.sql import compose, parameters
from dislock.drivers.targets import Database
from dislock.process.outcomes import NoThreadError
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
    """A request to leave, for one run of a protocol."""

    requested = False


class Threads:
    """Carries out steps for one protocol. ``run`` may be called from different threads, one at a time."""

    #: A run never waits for its own thread.
    must_not_wait = False
    _clock = staticmethod(clock)

    def __init__(self, database: Database, table_parts: list[str]) -> None:
        self._database = database
        self._table = table_parts
        self._changed = threading.Condition()
        self._link: _Link | None = None

    @staticmethod
    def leave() -> Leave:
        return Leave()

    @property
    def busy(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None

    def can_go_on(self, steps: Steps[Any]) -> bool:
        """Whether an interrupted run of the steps can be continued: only if it had not begun."""
        frame = steps.gi_frame  # type: ignore[attr-defined] # typing's Generator is more than a real one
        return frame is not None and frame.f_lasti < 0

    def request(self, leave: Leave) -> None:
        """Asks the run that has ``leave`` to end. May be called from any thread."""
        with self._changed:
            leave.requested = True
            self._changed.notify_all()

    def run(self, steps: Steps[T], leave: Leave | None = None) -> T:
        """Runs a protocol to its end.

        An exception that interrupts the wait (KeyboardInterrupt) is a request to leave, and is raised at the end.
        """
        run = _Run(leave or Leave())
        try:
            step = next(steps)
            while True:
                step = steps.send(self._carry_out(step, run))
        except StopIteration as end:
            result: T = end.value
        finally:
            if run.interrupt is not None:
                raise run.interrupt
        return result

    def run_later(self, steps: Steps[Any], keeper: threading.Thread | None, leave: Leave) -> None:
        """Runs the steps when the keeper has ended. Does not wait for that."""

        def work() -> None:
            if keeper:
                self.request(leave)
                keeper.join()
            self.run(steps)

        with suppress(RuntimeError):  # no thread could be started: the row expires
            threading.Thread(target=work, name="dislock-release", daemon=True).start()

    def keeper(self, steps: Steps[Any], leave: Leave, failed: Callable[[BaseException], None]) -> threading.Thread:
        """A thread that runs the steps. Start it; join it after a request to leave.

        ``failed`` is called with its error, if it ends with one.
        """

        def keep() -> None:
            try:
                self.run(steps, leave)
            except Exception as error:  # noqa: BLE001 - passed on
                failed(error)

        return threading.Thread(target=keep, name="dislock-renewal", daemon=True)

    def _carry_out(self, step: Step, run: _Run) -> Answer:
        if isinstance(step, Wait):
            self._wait(run, step.until, lambda: False)
            return Done(leave=run.take_request())
        if isinstance(step, Watch):
            return self._watch(step, run)
        if isinstance(step, Connect):
            return self._connect(step, run)
        if isinstance(step, Execute):
            return self._execute(step, run)
        self._close()
        return Done(leave=run.take_request())

    def _connect(self, step: Connect, run: _Run) -> Answer:
        target = self._database.targets[step.target]
        candidates, failures = [target.parameters], []
        try:
            if is_name(target.parameters):
                call, link = self._begin(run, step.by, lambda _: addresses(target.parameters))
                link.abandon()
                if call.result is None:
                    return self._explain(call, run, broken=False)
                candidates = call.result
            for candidate, by in shares(candidates, step.by):
                call, link = self._begin(run, by, partial(_Link.connect, parameters=options(candidate, by - clock())))
                if call.done and call.error is None:
                    self._close()
                    self._link = link
                    return Done(leave=run.take_request())
                answer = self._explain(call, run, broken=False)
                link.abandon()
                if len(candidates) == 1:
                    return answer
                failures.append(failure_at(target.name, candidate, answer))
                if answer.leave:
                    break
        except NoThreadError as error:
            return Failed(Failure(str(error)), run.take_request())
        return Failed(together(failures), answer.leave)

    def _begin(self, run: _Run, by: float, function: Callable[[_Link], Any]) -> tuple[_Call, _Link]:
        """Calls the function in a new thread, and waits for it until ``by``."""
        link = _Link(self._changed)
        call = link.submit(lambda: function(link))
        self._wait(run, by, lambda: call.done)
        return call, link

    def _execute(self, step: Execute, run: _Run) -> Answer:
        link, table = self._link, self._table
        assert link is not None
        call = link.submit(lambda: link.execute(step, table))
        linger = 0.0 if step.queues else LINGER - CANCEL_IN_LEAVING
        self._wait(run, cancel_time(step.by, clock()), lambda: call.done, linger=linger)
        if cancelled := not call.done:
            link.cancel()
            self._wait(run, step.by, lambda: call.done, linger=CANCEL_IN_LEAVING)
        if call.done and call.error is None:
            return Done(call.result, run.take_request(), link.doubts.of_answer(cancelled=cancelled))
        if cancelled and isinstance(call.error, psycopg.errors.QueryCanceled):
            return Failed(Failure(HAD_TO_WAIT), run.take_request())
        broken = not call.done or link.broken
        # Before the link is abandoned: that causes an error in its thread, which looks like the server's.
        answer = self._explain(call, run, broken=broken, journal=step.journal)
        if broken:
            link.abandon()
            self._link = None
        return answer

    def _watch(self, step: Watch, run: _Run) -> Answer:
        link = self._link
        assert link is not None
        # Made before the watch begins, so that a watch that has not begun yet can be ended too.
        try:
            over, end = socket.socketpair()
        except OSError as error:
            return Failed(self._database.failure(error, self._table, broken=True), run.take_request())
        with end:
            call = link.submit(lambda: link.watch(step.until, over))
            self._wait(run, step.until + GOODBYE, lambda: call.done)
        if not call.done or call.error is None:
            return Done(leave=run.take_request())
        return self._explain(call, run, broken=True)

    def _explain(self, call: _Call, run: _Run, *, broken: bool, journal: tuple[str, ...] = ()) -> Answer:
        if call.error is None:
            return Unanswered(run.take_request())
        if isinstance(call.error, EXPECTED):
            if journal:
                return Failed(self._database.journal_failure(call.error, journal, broken=broken), run.take_request())
            return Failed(self._database.failure(call.error, self._table, broken=broken), run.take_request())
        raise call.error

    def _close(self) -> None:
        if self._link:
            link, self._link = self._link, None
            link.close()

    def _wait(self, run: _Run, until: float, done: Callable[[], bool], linger: float = 0.0) -> None:
        """Waits for ``done``, until the moment, or for ``linger`` seconds after a request to leave."""
        asked = False
        with self._changed:
            while not done():
                if run.leave.requested and not asked:
                    asked, until = True, min(until, self._clock() + linger)
                remaining = until - self._clock()
                if remaining <= 0:
                    return
                try:
                    self._changed.wait(min(remaining, LONGEST_SLEEP))
                except BaseException as interrupt:  # noqa: BLE001 - raised again at the end of the run
                    run.interrupt = interrupt
                    run.leave.requested = True


class _Run:
    """The requests to one run of a protocol."""

    def __init__(self, leave: Leave) -> None:
        self.leave = leave
        self.interrupt: BaseException | None = None

    def take_request(self) -> bool:
        """Whether there was a request to leave; each request is reported once."""
        requested, self.leave.requested = self.leave.requested, False
        return requested


class _Call:
    """A function to call in the thread of a connection, and its result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class _Link:
    """A connection and its thread."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._connection: psycopg.Connection[Any] | None = None
        self.doubts = Doubts()
        self._thread = threading.Thread(target=self._serve, name="dislock-connection", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            # A limit of the system, or an interpreter that is shutting down.
            raise NoThreadError(f"no thread for a connection: {error}") from None

    def submit(self, function: Callable[[], Any]) -> _Call:
        call = _Call(function)
        self._calls.put(call)
        return call

    def connect(self, parameters: dict[str, Any]) -> None:
        self._connection = psycopg.connect(**parameters)
        self._connection.add_notice_handler(self.doubts)
        check_server(self._connection)

    def execute(self, step: Execute, table: list[str]) -> tuple[Row, ...]:
        assert self._connection is not None
        self.doubts.begin()
        query = compose(step.statement, table, step.journal)
        cursor = self._connection.execute(query, parameters(step.statement))
        return rows_of(step.statement, cursor.fetchall() if cursor.description else ())

    def watch(self, until: float, over: socket.socket) -> None:
        """Waits until that moment, or until the other end of ``over`` is closed.

        Raises ``OperationalError`` if the server ends the connection.
        """
        assert self._connection is not None
        with over, selectors.DefaultSelector() as selector:
            selector.register(self._connection.fileno(), selectors.EVENT_READ)
            selector.register(over, selectors.EVENT_READ)
            while (remaining := until - clock()) > 0:
                ready = [key.fileobj for key, _ in selector.select(min(remaining, LONGEST_SLEEP))]
                if over in ready:
                    return
                if ready:
                    take_news(self._connection.pgconn)

    @property
    def broken(self) -> bool:
        return self._connection is None or self._connection.closed

    def cancel(self) -> None:
        """Asks the server to cancel the statement in flight."""
        assert self._connection is not None
        cancel(self._connection.pgconn)

    def close(self) -> None:
        """Closes the connection in order, and waits a moment for the thread to end."""
        self._calls.put(None)
        self._thread.join(GOODBYE)
        if self._thread.is_alive():
            self.abandon()

    def abandon(self) -> None:
        """Abandons a connection that does not answer. Its thread ends when the socket does."""
        self._calls.put(None)
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):
                sever(connection.fileno())

    def _serve(self) -> None:
        decline_signals()
        while call := self._calls.get():
            try:
                call.result = call.function()
            except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits for it
                call.error = error
            with self._changed:
                call.done = True
                self._changed.notify_all()
        if self._connection is not None:
            self._connection.close()
