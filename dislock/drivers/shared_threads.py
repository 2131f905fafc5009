"""The driver for threads whose locks share connections: all locks of one process on one database and table.

Another thread does the work (``shared_courier``). This module is what the thread with the lock does: it hands over a
run of a protocol, and waits for its end.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from dislock.drivers.clock import LONGEST_SLEEP, clock
from dislock.drivers.connections import GOODBYE
from dislock.drivers.shared import key_of
from dislock.drivers.shared_courier import Courier, find, post
from dislock.drivers.targets import Database
from dislock.errors import DatabaseUnavailableError, DislockError
from dislock.events import SINK, Event, report
from dislock.protocol.sharing_tickets import Member, Seat
from dislock.protocol.steps import Steps

T = TypeVar("T")


class _Job(Generic[T]):
    """One run of a protocol in the courier's thread. It is started and joined like a ``threading.Thread``.

    An exception from a signal handler may come between any two instructions. So nothing here holds a lock, and every
    action can be repeated without harm.
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
            # The waiting thread logs events: a handler may be slow, or wait for a lock that this thread holds.
            self._context.run(SINK.set, self._tell)
        self._started = False
        self._bell = threading.Lock()
        self._bell.acquire()
        self._begun = False
        self._member: Member | None = None
        self._courier: Courier | None = None
        self.ended = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self._next: _Job[Any] | None = None
        self.failed: Callable[[BaseException], None] | None = None
        leave.job = self
        #: A request to leave that was not passed to the steps yet.
        self._asking = leave.requested

    # In the thread that waits

    def start(self) -> None:
        # First, so that after an interruption the job counts as started.
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
        """Ends this job, and starts the other one after that."""
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
            if self.is_alive() and (courier := self._courier) and courier.over:
                self.ended = True
                if courier.fault:
                    raise DatabaseUnavailableError(f"no connection could be opened: {courier.fault}")
                raise DislockError("the thread that renews the leases has ended")
            if sys.is_finalizing():
                raise DislockError("the interpreter is shutting down, and its other threads have stopped")

    def say(self) -> None:
        while self._events:
            with suppress(IndexError):
                report(self._events.popleft())

    def wait_for_the_thread(self) -> None:
        """Waits a moment for the thread to end, if this was its last job."""
        end, courier = clock() + GOODBYE, self._courier
        while courier and courier.thread.is_alive() and courier.group.hub.over and clock() < end:
            courier.thread.join(0.01)

    # In the courier's thread

    def _go_on(self, courier: Courier) -> None:
        self._courier = courier
        if not self._begun:
            self._begun = True
            ended = partial(self._end, courier)
            self._member = courier.group.hub.run(
                self._driver.seat, self._steps, ended, self._context, keeps=self._keeps
            )
        if self._asking and self._member:
            self._asking = False
            courier.group.hub.request(self._member)

    def _end(self, courier: Courier, result: T, error: BaseException | None) -> None:
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
        with suppress(RuntimeError):  # it was released already
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
    def must_not_wait(self) -> bool:
        """Whether a wait would never end, because this very thread would have to do the work."""
        courier = find(self._key)
        return courier is not None and courier.thread is threading.current_thread()

    def can_go_on(self, steps: Steps[Any]) -> bool:
        """Whether an interrupted run of the steps can be continued."""
        return steps.gi_frame is not None  # type: ignore[attr-defined] # typing's Generator is more than a real one

    def request(self, leave: SharedLeave) -> None:
        """Asks the run that has ``leave`` to end. May be called from any thread."""
        leave.requested = True
        if leave.job:
            leave.job.ask_to_leave()

    def run(self, steps: Steps[T], leave: SharedLeave | None = None) -> T:
        """Runs a protocol to its end.

        An exception that interrupts the wait (KeyboardInterrupt) is a request to leave, and is raised at the end.
        """
        before, interrupt = self._job, None
        if before and before.is_alive():
            # The wait for it was interrupted.
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
        """Runs the steps when the keeper has ended. Does not wait for that."""
        job: _Job[Any] = _Job(self, steps, SharedLeave(), background=True)
        if keeper and keeper.is_alive():
            keeper.end_before(job)
        else:
            job.start()

    def keeper(self, steps: Steps[Any], leave: SharedLeave, failed: Callable[[BaseException], None]) -> _Job[Any]:
        """A job that runs the steps in the background. Start it; join it after a request to leave.

        ``failed`` is called with its error, if it ends with one.
        """
        job = _Job(self, steps, leave, keeps=True)
        job.failed = failed
        return job

    def post(self, action: Callable[[Courier], None]) -> Courier:
        """Makes the thread of all these locks do something."""
        return post(self._key, self._database, self._table, action)
