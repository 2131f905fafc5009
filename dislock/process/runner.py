"""One run of a command: passes signals on, stops the command on demand, and reports its end."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from dislock.process.child import Child, Over, Started
from dislock.process.ending import flush_output
from dislock.process.executable import Environment, execute
from dislock.process.outcomes import Ended, Interrupted, Stop
from dislock.process.signals import MESSAGES, Arrival, Signals, inherited
from dislock.process.states import Course, Demand, Life

# The result of a command that was stopped before it had begun.
_NEVER_BEGUN = Ended(128 + signal.SIGTERM, stopped=True)

# Seconds between two looks at the group of a command that has ended on request.
_GLANCE = 0.05

_Event = Stop | Arrival | Started | Over


class Run:
    """One run of a command, from start to end. ``begun`` says, also after an exception, whether it has begun.

    ``signals``: its signals are passed on. Without it (library) no signal is caught; an exception while waiting stops
    the command (SIGTERM, ``kill_grace`` seconds, SIGKILL) and is raised again.
    """

    def __init__(self, command: Sequence[str], *, signals: Signals | None = None, kill_grace: float = 10.0) -> None:
        if isinstance(command, (str, bytes)) or not command:
            raise ValueError("command must be a sequence of the program and its arguments")
        self._command = command
        self._signals = signals
        self._grace = kill_grace
        self._course = Course()
        # All events come through this one queue.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._deadline: float | None = None  #: when SIGKILL follows, while it is still to come
        self._unsure: set[int] = set()

    @property
    def begun(self) -> bool:
        """Whether the command has begun. Final when ``to_its_end`` has returned or raised."""
        return self._course.life.begun

    def to_its_end(
        self,
        environment: Environment | None = None,
        subscribe: Callable[[Callable[[Stop], None]], None] | None = None,
    ) -> Ended:
        """Runs the command once, until it has ended.

        The command gets its own process group, unless our group is the foreground of its terminal: there the kernel
        sends Ctrl-C and job control to the command anyway. On Linux the command is killed if this process dies.
        ``environment`` replaces the whole environment.

        ``subscribe`` gets a function that stops the command when it is called with a ``Stop``, from any thread. A stop
        cannot be undone.

        After a stop, or a passed-on signal that asks to end, the other processes of the command's group have until the
        end of that grace period, or ``kill_grace`` seconds from the command's end. What is left then is killed before
        this returns; without ``/proc``, at once. After an ordinary end they live on.

        Raises ``NotStarted``; ``Interrupted`` if a signal asked to end before the start; and ``ChildProcessError`` if
        other code in this process took the exit status.
        """
        signals = self._signals
        child = Child(
            self._command,
            environment,
            dispositions=inherited() if signals is None else signals.dispositions(),
            mask=None if signals is None else signals.mask,
            own_group=not _in_foreground(),
            # In a library, other children belong to the program.
            orphans=signals is not None and os.getpid() == 1,
            course=self._course,
            report=self._events.put,
        )
        if signals is not None and (number := signals.asked()) is not None:
            raise Interrupted(number)
        if subscribe is not None:
            # Directly before the start: if the lease is lost by now, it puts the stop into the queue at once.
            subscribe(self._events.put)
        try:
            if self._events.empty():
                child.start()
            self._until_over(child)
            return self._result(child)
        except BaseException:
            self._abort(child)
            raise
        finally:
            if signals is not None:
                signals.hand_on(None)

    def _until_over(self, child: Child) -> None:
        while self._course.life is not Life.PREVENTED:
            try:
                event = self._events.get(timeout=self._time_left())
            except queue.Empty:
                self._deadline = None
                child.kill()
                continue
            if isinstance(event, Over):
                return
            self._take(event, child)

    def _result(self, child: Child) -> Ended:
        if child.failure is not None:
            raise child.failure
        if self._course.life is Life.PREVENTED:
            return _NEVER_BEGUN
        self._end_rest(child)
        code = child.reap()
        return Ended(
            code=code if code >= 0 else 128 - code,
            stopped=self._course.demand >= Demand.STOP,
            interrupted=code == -signal.SIGINT and not child.own_group,
        )

    def _abort(self, child: Child) -> None:
        """Stops the command because of an exception. Another exception meanwhile kills it at once."""
        try:
            if child.prevent():
                return
            self._stop(child, self._grace)
            if self._course.life.over:
                # The first exception may have come after the last event was taken from the queue.
                self._events.put(Over())
            self._until_over(child)
            if self._course.life is Life.ENDED:
                self._end_rest(child)
        except BaseException:
            child.prevent()
            child.kill()
            raise
        if self._course.life is Life.ENDED:
            with contextlib.suppress(ChildProcessError):  # the first exception is the one to raise
                child.reap()

    def _end_rest(self, child: Child) -> None:
        """Ends the rest of a group whose command was asked to end, and has ended."""
        if self._course.demand is Demand.NOTHING:
            return
        # A shell often ends at once, while the program that it started is still cleaning up.
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
        while child.rest_runs() and (left := self._time_left()):
            # They are not children of this process, so nothing reports their end.
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=min(left, _GLANCE))
                if isinstance(event, (Stop, Arrival)):
                    self._take(event, child)
        child.kill_rest()

    def _take(self, event: Stop | Arrival | Started, child: Child) -> None:
        if isinstance(event, Stop):
            if not child.prevent():
                self._stop(child, event.grace)
        elif isinstance(event, Started):
            self._unsure = set(event.unsure)
            if self._signals is not None:
                self._signals.hand_on(self._events.put)
        elif event.number in MESSAGES:
            child.send_to_leader(event.number)
        elif not self._has_it_already(event, child):
            self._unsure.discard(event.number)
            child.ask(event.number)

    def _stop(self, child: Child, grace: float) -> None:
        deadline = time.monotonic() + grace
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        child.stop()

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _has_it_already(self, arrived: Arrival, child: Child) -> bool:
        """Whether the kernel also sent the signal to the command: to the whole foreground group of the terminal."""
        if child.own_group or not arrived.from_kernel or arrived.number in self._unsure:
            return False
        # When a terminal hangs up, the kernel first signals only the leader of the session.
        return arrived.number != signal.SIGHUP or os.getsid(0) != os.getpid()


def become(command: Sequence[str], environment: Environment | None, signals: Signals) -> NoReturn:
    """Replaces this process by ``command``.

    Raises ``NotStarted``, or ``Interrupted`` if a signal asked to end before. Then everything is as before, except that
    no thread takes signals: they stay pending. Must be called in the main thread.
    """
    # USR1 and USR2 also end a program that has no handler yet.
    if (number := signals.asked(messages=True)) is not None:
        raise Interrupted(number)
    flush_output()
    dispositions = signals.dispositions()
    before = [(changed, signal.getsignal(changed)) for changed, _ in dispositions]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        for changed, handler in dispositions:
            signal.signal(changed, handler)
        # One last look: a signal that comes through would end this process with the slot taken and nothing started.
        if (number := signals.asked(messages=True)) is not None:
            raise Interrupted(number)
        # From here on a signal does to this process what it would do to the command.
        signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask)
        execute(command, environment)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for changed, handler in before:
            if handler is not None:  # None: not installed by Python, which cannot put it back
                signal.signal(changed, handler)


def _in_foreground() -> bool:
    """Whether our process group is the foreground of its controlling terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
