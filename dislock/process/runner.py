"""Run a command while a lock is held: pass signals on, end it on a loss, and tell how it ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from dislock.errors import Loss
from dislock.process.child import Beginning, Child, Failed, Gone, Started
from dislock.process.executable import Environment, NotStarted, execute, flush_output
from dislock.process.signals import MESSAGES, Signals, inherited

__all__ = ["Beginning", "Ended", "Interrupted", "NotStarted", "Signals", "become", "supervise"]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    ``code`` follows the shell: 128+N for a death by signal N. ``lost``: the lease was lost before the command had
    ended, whatever its code; or before it had begun, and then it never did. ``interrupted``: the command died by
    SIGINT in the foreground of a terminal, and a shell that waits for us should see us die the same way
    (``signals.die_of_interrupt``).
    """

    code: int
    lost: bool
    interrupted: bool = False


class Interrupted(Exception):  # noqa: N818 - a result that the caller turns into an exit code
    """Signal ``number`` asked to end before the command was started; it never ran."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number} came before the command was started")
        self.number = number


def supervise(
    command: Sequence[str],
    *,
    environment: Environment | None,
    signals: Signals | None,
    subscribe: Callable[[Callable[[Loss], None]], None] | None,
    kill_grace: float,
    beginning: Beginning | None = None,
) -> Ended:
    """Run ``command`` to its end.

    It gets a process group of its own, unless ours is the foreground of its terminal: there Ctrl-C and job control
    work by themselves. On Linux it is killed when this process dies. ``environment`` replaces the whole environment.

    ``signals``: what arrives is passed on (``Interrupted`` if it came before the start). Without it (library) no
    signal is caught; an exception while waiting ends the command (SIGTERM, ``kill_grace`` seconds, SIGKILL) and is
    raised again.

    ``subscribe`` is given a function to call on a loss: then SIGTERM, ``loss.grace`` seconds, SIGKILL. A stop once
    begun is not taken back.

    After a stop or a passed-on signal that asks to end, others of the command's group have until that grace is over,
    or ``kill_grace`` seconds from the command's end; what is left then is killed before this returns (where there
    is no ``/proc``, at once). After an ordinary end they live on.

    ``beginning`` tells afterwards whether the command has begun, also when an exception came.

    Raises ``NotStarted``, and ``ChildProcessError`` when another part of this process took the exit status.
    """
    if isinstance(command, (str, bytes)) or not command:
        raise ValueError("command must be a list of the program and its arguments")
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    beginning = Beginning() if beginning is None else beginning
    child = Child(
        command,
        environment,
        dispositions=inherited() if signals is None else signals.dispositions(),
        mask=None if signals is None else signals.mask,
        own_group=not _in_foreground(),
        # In a library other children are somebody else's.
        orphans=signals is not None and os.getpid() == 1,
        beginning=beginning,
        report=events.put,
    )
    if signals is not None and (number := signals.stop()) is not None:
        raise Interrupted(number)
    if subscribe is not None:
        # The last thing before the start, because it tells of a lease that is over by now.
        subscribe(events.put)
    if not events.empty():
        return _NEVER_BEGUN
    run = _Run(child, events, signals, kill_grace)
    try:
        child.start()
        run.until_gone()
        return run.result()
    except BaseException:
        run.abort()
        raise
    finally:
        if signals is not None:
            signals.halt()


def become(command: Sequence[str], environment: Environment | None, signals: Signals) -> NoReturn:
    """Replace this process by ``command``.

    Raises ``NotStarted``, or ``Interrupted`` when a signal asked to end before; then everything is as before, except
    that nobody listens to signals: what arrives stays pending. Must be called in the main thread.
    """
    if (number := signals.stop()) is not None:
        raise Interrupted(number)
    flush_output()
    dispositions = signals.dispositions()
    before = [(changed, signal.getsignal(changed)) for changed, _ in dispositions]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        for changed, handler in dispositions:
            signal.signal(changed, handler)
        # One more look: a signal that is let through would end this process with the slot taken and nothing started.
        if (number := signals.take()) is not None:
            raise Interrupted(number)
        # From here on a signal does what it would do to the command.
        signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask)
        execute(command, environment)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for changed, handler in before:
            if handler is not None:  # installed by other code than Python's, which cannot be put back from here
                signal.signal(changed, handler)


# A command whose lease was lost before it had begun.
_NEVER_BEGUN = Ended(128 + signal.SIGTERM, lost=True)

# Seconds between two looks at a group whose command has ended after it was asked to.
_GLANCE = 0.05


@dataclass(frozen=True)
class _Arrived:
    number: int
    from_kernel: bool


_Event = Loss | _Arrived | Started | Failed | Gone


class _Run:
    """One command from start to end; everything that happens comes through one queue."""

    def __init__(self, child: Child, events: queue.SimpleQueue[_Event], signals: Signals | None, grace: float) -> None:
        self._child = child
        self._events = events
        self._signals = signals
        self._grace = grace
        self._failure: BaseException | None = None
        self._lost = self._never_begun = False
        self._stopping = self._aborting = False
        self._kill_rest = False
        self._deadline: float | None = None
        self._unsure: set[int] = set()

    def until_gone(self) -> None:
        # In an abort the last event may have been taken from the queue already.
        while not (self._never_begun or (self._aborting and self._child.over)):
            try:
                event = self._events.get(timeout=self._time_left())
            except queue.Empty:
                self._deadline = None
                self._child.kill()
                continue
            if isinstance(event, Gone):
                return
            if isinstance(event, Failed):
                self._failure = event.error
                return
            self._take(event)

    def result(self) -> Ended:
        if self._failure is not None:
            raise self._failure
        if self._never_begun:
            return _NEVER_BEGUN
        self._end_rest()
        code = self._child.reap()
        return Ended(
            code=code if code >= 0 else 128 - code,
            lost=self._lost,
            interrupted=code == -signal.SIGINT and not self._child.own_group,
        )

    def abort(self) -> None:
        """End the command because of an exception; another exception meanwhile kills it at once."""
        self._aborting = True
        try:
            if self._child.abandon():
                return
            self._stop(self._grace)
            self.until_gone()
            self._end_rest()
        except BaseException:
            self._child.abandon()
            self._child.kill()
            raise
        if self._child.unreaped:
            with contextlib.suppress(ChildProcessError):  # the first exception says what happened
                self._child.reap()

    def _end_rest(self) -> None:
        """See to it that nobody of the group works on without the lock; the command itself has ended."""
        if not self._kill_rest:
            return
        # A shell often ends at once where the program that it started still cleans up, as it was asked to.
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
        while self._child.rest_runs() and (left := self._time_left()):
            # They are no children of ours, so that nothing announces their end.
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=min(left, _GLANCE))
                if isinstance(event, (Loss, _Arrived)):
                    self._take(event)
        self._child.kill_rest()

    def _take(self, event: Loss | _Arrived | Started) -> None:
        if isinstance(event, Loss):
            self._lost = True
            self._never_begun = self._child.abandon()
            self._stop(event.grace)
        elif isinstance(event, Started):
            self._unsure = set(event.unsure)
            if self._stopping:
                self._terminate()
            if self._signals is not None:
                self._signals.listen(lambda number, kernel: self._events.put(_Arrived(number, kernel)))
        elif event.number in MESSAGES:
            self._child.send_to_leader(event.number)
        elif not self._has_it_already(event):
            self._unsure.discard(event.number)
            self._kill_rest = True
            self._child.send(event.number)

    def _stop(self, grace: float) -> None:
        self._stopping = self._kill_rest = True
        deadline = time.monotonic() + grace
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        self._terminate()

    def _terminate(self) -> None:
        self._child.send(signal.SIGTERM)
        # A stopped process would not notice before the SIGKILL.
        self._child.send(signal.SIGCONT)

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _has_it_already(self, arrived: _Arrived) -> bool:
        """Whether the kernel sent the signal to the command too: to the whole foreground group of the terminal."""
        if self._child.own_group or not arrived.from_kernel or arrived.number in self._unsure:
            return False
        # When a terminal hangs up, the leader of its session is told before, and without, the group.
        return arrived.number != signal.SIGHUP or os.getsid(0) != os.getpid()


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
