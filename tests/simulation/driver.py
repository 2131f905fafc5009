"""The driver for a simulated world: the same steps, carried out by callbacks, with no thread, no socket and no time
of its own.

It exists so that the rules can be tried against thousands of histories of failing networks, clocks and processes. The
rules see no difference: a request to leave is told once, ends a ``Wait`` or a ``Connect`` at once, and lets an
``Execute`` in flight have ``LINGER`` seconds more. Before its time is up a statement is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dislock.drivers.cancellation import CANCEL_IN_LEAVING, cancel_time
from dislock.errors import DislockError
from dislock.protocol.statements import Statement, rows_of
from dislock.protocol.steps import (
    CANCELLED,
    LINGER,
    ONLY_LOCAL,
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
)

Rows = tuple[tuple[Any, ...], ...]
Reply = tuple[Rows, bool]


class World(Protocol):
    """What is simulated. Before one of these methods has returned, it calls nothing of the driver's."""

    def clock(self) -> float:
        """Seconds on the clock of the process."""

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        """Calls back at that moment by the process's clock, or a little later; this cannot be taken back."""

    def connect(self, target: int, answer: Callable[[object], None]) -> None:
        """Answers with a link, with a ``Failure``, or never."""

    def execute(self, link: object, statement: Statement, answer: Callable[[Reply | Failure], None]) -> None:
        """Answers with rows and whether the server warned, with a ``Failure``, or never."""

    def cancel(self, link: object) -> None:
        """Asks the server to drop the statement in flight; the statement's own answer tells whether it was."""

    def abandon(self, link: object) -> None:
        """The process closes its end of the link; what was sent may still arrive."""


class Leave:
    """A request to leave, for one run of a protocol."""

    requested = False


class Simulated:
    """Carries out steps for one protocol, one run at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._link: object | None = None
        self._steps: Steps[Any] | None = None
        self._leave = Leave()
        self._ended: Callable[[Any, DislockError | None], None] | None = None
        self._step: Step | None = None
        #: Counts the steps, so that an answer that comes after its step was over is told from one in time.
        self._turn = 0
        #: Whether the statement of this step was cancelled: an answer after that proves nothing.
        self._cancelled = False

    def run(self, steps: Steps[Any], leave: Leave, ended: Callable[[Any, DislockError | None], None]) -> None:
        """Runs a protocol to its end, then calls ``ended`` with its result or with the error that it raised."""
        assert self._steps is None, "one run at a time"
        self._steps, self._leave, self._ended = steps, leave, ended
        self._go(None)

    def request(self, leave: Leave) -> None:
        """Makes the run that was given ``leave`` come to its end."""
        leave.requested = True
        if leave is not self._leave or self._step is None:
            return
        if isinstance(self._step, Execute):
            self._linger()
        else:
            self._over(self._turn)

    def _linger(self) -> None:
        now = self._world.clock()
        self._world.call_at(now + LINGER - CANCEL_IN_LEAVING, partial(self._cancel, self._turn))
        self._world.call_at(now + LINGER, partial(self._over, self._turn))

    def _cancel(self, turn: int) -> None:
        if turn == self._turn and self._step is not None and self._link is not None:
            self._cancelled = True
            self._world.cancel(self._link)

    def _go(self, answer: Answer | None) -> None:
        steps = self._steps
        assert steps is not None
        try:
            while True:
                # A generator is started by sending it None.
                step = steps.send(answer)  # type: ignore[arg-type] # typing knows no such exception for the first one
                answer = self._begin(step)
                if answer is None:
                    return
        except StopIteration as end:
            self._end(end.value, None)
        except DislockError as error:
            self._end(None, error)

    def _end(self, result: Any, error: DislockError | None) -> None:
        ended, self._steps = self._ended, None
        assert ended is not None
        ended(result, error)

    def _begin(self, step: Step) -> Answer | None:
        """Begins a step; its answer if it is over at once."""
        world = self._world
        self._turn += 1
        self._cancelled = False
        if isinstance(step, Wait):
            if self._leave.requested or step.until <= world.clock():
                return Done(leave=self._take_request())
            world.call_at(step.until, partial(self._over, self._turn))
        elif isinstance(step, Connect):
            if self._leave.requested or step.by <= world.clock():
                return Unanswered(self._take_request())
            world.connect(step.target, partial(self._connected, self._turn))
            world.call_at(step.by, partial(self._over, self._turn))
        elif isinstance(step, Execute):
            assert self._link is not None
            world.execute(self._link, step.statement, partial(self._executed, self._turn))
            world.call_at(cancel_time(step.by, world.clock()), partial(self._cancel, self._turn))
            world.call_at(step.by, partial(self._over, self._turn))
            if self._leave.requested:
                self._linger()
        else:
            self._drop()
            return Done(leave=self._take_request())
        self._step = step
        return None

    def _over(self, turn: int) -> None:
        """The time of a step is up, or it is to be left."""
        if turn != self._turn or self._step is None:
            return
        step, self._step = self._step, None
        if isinstance(step, Wait):
            self._go(Done(leave=self._take_request()))
            return
        if isinstance(step, Execute):
            self._drop()
        self._go(Unanswered(self._take_request()))

    def _connected(self, turn: int, outcome: object) -> None:
        failed = isinstance(outcome, Failure)
        if turn != self._turn or self._step is None:
            if not failed:
                self._world.abandon(outcome)
            return
        self._step = None
        if isinstance(outcome, Failure):
            self._go(Failed(outcome, self._take_request()))
            return
        self._drop()
        self._link = outcome
        self._go(Done(leave=self._take_request()))

    def _executed(self, turn: int, outcome: Reply | Failure) -> None:
        step = self._step
        if turn != self._turn or step is None:
            return
        assert isinstance(step, Execute)
        self._step = None
        if isinstance(outcome, Failure):
            if outcome.broken:
                self._drop()
            self._go(Failed(outcome, self._take_request()))
            return
        rows, warned = outcome
        doubt = ONLY_LOCAL if warned else CANCELLED if self._cancelled else ""
        self._go(Done(rows_of(step.statement, rows), self._take_request(), doubt))

    def _drop(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            self._world.abandon(link)

    def _take_request(self) -> bool:
        """Whether there was a request to leave; each request is reported once."""
        requested, self._leave.requested = self._leave.requested, False
        return requested
