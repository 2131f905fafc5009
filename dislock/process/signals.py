"""The wrapper's own signals: held back from its first moment, and handed on one by one.

A signal that is blocked in every thread stays pending in the kernel until a thread takes it. So no signal is lost
between two steps of a run, and no handler ever interrupts a step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple


def _existing(*names: str) -> tuple[signal.Signals, ...]:
    # Windows lacks most; there this module is imported with the library and not used.
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


#: Signals that ask a command to end; they go to its whole process group.
ENDING = _existing("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
#: Signals whose meaning is the command's own; they go to the command alone, never to its children.
MESSAGES = _existing("SIGUSR1", "SIGUSR2")

# Wakes the listening thread. It is sent to that thread alone. Other processes do not use this signal; the kernel sends
# it only for a timer that counts a process's CPU time.
_WAKE: int = getattr(signal, "SIGVTALRM", 0)
# asm-generic/siginfo.h; the signal module does not name it. A sender in another PID namespace also shows as pid 0,
# so si_pid would not do.
_SI_KERNEL = 0x80
# The interpreter ignores these at its start; a command must find them as they are for any other program.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")

Disposition = tuple[int, Any]


class Arrival(NamedTuple):
    """A signal that has arrived.

    ``from_kernel``: the terminal sent it to the whole foreground group. Systems that do not say who sent a signal
    (macOS) have it True for INT and QUIT, which hardly anything but a terminal sends.
    """

    number: int
    from_kernel: bool


class Signals:
    """Receives the signals of a command line run. To be entered in the main thread, before any other thread exists.

    As a context manager it holds back TERM, INT, HUP, QUIT, USR1 and USR2, except those that came ignored (nohup):
    they stay ignored. KeyboardInterrupt, if it came before, is raised on entry. Leaving puts everything back; a program
    that is about to end does so inside the block, because a signal after it would replace its exit code.

    ``on_ending`` watches for a request to end before a command runs, ``hand_on`` gives a running command what arrives,
    and ``asked`` is the look in between: it says which signal asked to end.
    """

    def __init__(self) -> None:
        self.mask: set[int] = set()  #: the signal mask as it came
        self._asked: int | None = None
        self._thread: threading.Thread | None = None
        self._task: _Task | None = None
        self._ending: frozenset[int] = frozenset()
        self._messages: frozenset[int] = frozenset()
        self._chld_ignored = False

    def __enter__(self) -> Signals:
        self._ending = frozenset(n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN)
        self._messages = frozenset(n for n in MESSAGES if signal.getsignal(n) is not signal.SIG_IGN)
        # Later threads inherit the block.
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._ending | self._messages | {_WAKE}))
        # Where SIGCHLD is ignored, the kernel reaps children by itself and their exit status is lost.
        self._chld_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._give(None)
            self._thread.join()
            self._thread = None
        # Too late to mean anything: the work is over, and its result must not be replaced by a death.
        while late := signal.sigpending() & (self._ending | self._messages):
            signal.sigwait(late)
        if self._chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def on_ending(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once, in another thread, when a signal asks to end, or has asked already.

        Raises ``NoThreadError``. Other signals stay pending, and reach the command when it starts.
        """

        def note(arrived: Arrival) -> None:
            if self._asked is None:
                self._asked = arrived.number
                callback()

        self._listen(self._ending, note)

    def hand_on(self, receiver: Callable[[Arrival], None] | None) -> None:
        """Hand every signal to ``receiver``, called in another thread. None: leave what arrives pending again.

        Raises ``NoThreadError``; not after ``on_ending``, whose thread serves for this too.
        """
        if receiver is not None:
            self._listen(self._ending | self._messages, receiver)
        elif self._thread is not None:
            self._listen(frozenset(), lambda _: None)

    def asked(self, *, messages: bool = False) -> int | None:
        """The signal that asked to end, seen by ``on_ending`` or still pending; None if there is none.

        From here on what arrives stays pending. ``messages``: USR1 and USR2 count too.
        """
        self.hand_on(None)
        pending = signal.sigpending()
        for number in (*ENDING, *(MESSAGES if messages else ())):
            if self._asked is None and number in pending and number in self._ending | self._messages:
                signal.sigwait({number})
                self._asked = int(number)
        return self._asked

    def dispositions(self) -> list[Disposition]:
        """What a command's signal dispositions must be set to before its exec."""
        return inherited() + ([(signal.SIGCHLD, signal.SIG_IGN)] if self._chld_ignored else [])

    def _listen(self, numbers: frozenset[int], receiver: Callable[[Arrival], None]) -> None:
        task = _Task(numbers | {_WAKE}, receiver)
        self._give(task)
        if self._thread is None:
            # One thread for the whole run: later the system may have none left, and the command that runs by then would
            # have to be stopped for that.
            thread = threading.Thread(target=self._run, name="dislock-signals", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Not loaded before: until this module is there, nothing is held back.
                from dislock.process.outcomes import NoThreadError

                raise NoThreadError(f"no thread for signals: {error} (a limit on processes, or on memory)") from error
            self._thread = thread
        task.begun.wait()

    def _give(self, task: _Task | None) -> None:
        self._task = task
        if self._thread is not None and self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, _WAKE)

    def _run(self) -> None:
        while (task := self._task) is not None:
            task.begun.set()
            arrived = _next(task.numbers)
            if arrived.number != _WAKE:
                task.receiver(arrived)


class _Task:
    """What the listening thread is to listen for."""

    def __init__(self, numbers: frozenset[int], receiver: Callable[[Arrival], None]) -> None:
        self.numbers = numbers
        self.receiver = receiver
        self.begun = threading.Event()  #: set when the thread waits for nothing else any more


def inherited() -> list[Disposition]:
    """The dispositions that this interpreter's own would spoil for a command.

    ``exec`` resets caught signals by itself, but one that arrives just before would go to a Python handler that
    never runs, and be lost.
    """
    caught = {int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))}
    spoilt = {int(getattr(signal, name)) for name in _IGNORED_BY_PYTHON if hasattr(signal, name)}
    return [(number, signal.SIG_DFL) for number in sorted(caught | spoilt)]


def _next(numbers: frozenset[int]) -> Arrival:
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(numbers)
        return Arrival(int(info.si_signo), info.si_code == _SI_KERNEL)
    number = int(signal.sigwait(numbers))
    return Arrival(number, number in (signal.SIGINT, signal.SIGQUIT))
