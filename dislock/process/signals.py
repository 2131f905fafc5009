"""The wrapper's own signals: held back from its start, and handed on one by one.

The kernel keeps a signal that is blocked in every thread pending until a thread takes it (POSIX, sigwait). So no signal
is lost between two steps of a run, and no handler ever interrupts a step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple


def _existing(*names: str) -> tuple[signal.Signals, ...]:
    # Windows lacks most of them; there the library imports this module but does not use it.
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


#: Signals that ask a command to end; its whole process group gets them.
ENDING = _existing("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
#: Signals whose meaning the command defines; only the command gets them, never its children.
MESSAGES = _existing("SIGUSR1", "SIGUSR2")

# Wakes the listening thread; only that thread gets it. Other processes do not send this signal, and the kernel sends it
# only for a timer that counts a process's CPU time.
_WAKE: int = getattr(signal, "SIGVTALRM", 0)
# asm-generic/siginfo.h; the signal module has no name for it. si_pid is no help: it is also 0 for a sender in another
# PID namespace.
_SI_KERNEL = 0x80
# The interpreter ignores these at its start; for a command they must be as for any other program.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")

Disposition = tuple[int, Any]


class Arrival(NamedTuple):
    """A signal that has arrived.

    ``from_kernel``: the terminal sent it to the whole foreground group. On systems that do not say who sent a signal
    (macOS) it is True for INT and QUIT, because terminals are nearly the only senders of these.
    """

    number: int
    from_kernel: bool


class Signals:
    """Receives the signals of a command line run. Enter it in the main thread, before any other thread exists.

    As a context manager it holds back TERM, INT, HUP, QUIT, USR1 and USR2. Signals that were ignored when the process
    started (nohup) stay ignored. A KeyboardInterrupt that came before is raised on entry. Leaving the block restores
    everything. A program that is about to end does so inside the block, because a later signal would replace its exit
    code.

    ``on_ending`` watches for a request to end before a command runs. ``hand_on`` passes what arrives to a running
    command. ``asked`` is the check in between: it returns the signal that asked to end.
    """

    def __init__(self) -> None:
        self.mask: set[int] = set()  #: the signal mask at entry
        self._asked: int | None = None
        self._thread: threading.Thread | None = None
        self._task: _Task | None = None
        self._ending: frozenset[int] = frozenset()
        self._messages: frozenset[int] = frozenset()
        self._chld_ignored = False

    def __enter__(self) -> Signals:
        self._ending = frozenset(n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN)
        self._messages = frozenset(n for n in MESSAGES if signal.getsignal(n) is not signal.SIG_IGN)
        # Threads that are started later inherit the mask.
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._ending | self._messages | {_WAKE}))
        # While SIGCHLD is ignored, the kernel reaps children and their exit status is lost (POSIX, wait).
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
        # The work is over, so these signals come too late: a death by signal must not replace its result.
        while late := signal.sigpending() & (self._ending | self._messages):
            signal.sigwait(late)
        if self._chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def on_ending(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, in another thread, when a signal asks to end, or has asked already.

        Other signals stay pending, and reach the command when it starts. Raises ``NoThreadError``.
        """

        def note(arrived: Arrival) -> None:
            if self._asked is None:
                self._asked = arrived.number
                callback()

        self._listen(self._ending, note)

    def hand_on(self, receiver: Callable[[Arrival], None] | None) -> None:
        """Passes every signal to ``receiver``, in another thread. None: signals stay pending again.

        Raises ``NoThreadError``, but not after ``on_ending``, because the thread then exists already.
        """
        if receiver is not None:
            self._listen(self._ending | self._messages, receiver)
        elif self._thread is not None:
            self._listen(frozenset(), lambda _: None)

    def asked(self, *, messages: bool = False) -> int | None:
        """The signal that asked to end, seen by ``on_ending`` or still pending; None if there is none.

        From here on signals stay pending. ``messages``: USR1 and USR2 count too.
        """
        self.hand_on(None)
        pending = signal.sigpending()
        for number in (*ENDING, *(MESSAGES if messages else ())):
            if self._asked is None and number in pending and number in self._ending | self._messages:
                signal.sigwait({number})
                self._asked = int(number)
        return self._asked

    def dispositions(self) -> list[Disposition]:
        """The signal dispositions to set before the command's exec."""
        return inherited() + ([(signal.SIGCHLD, signal.SIG_IGN)] if self._chld_ignored else [])

    def _listen(self, numbers: frozenset[int], receiver: Callable[[Arrival], None]) -> None:
        task = _Task(numbers | {_WAKE}, receiver)
        self._give(task)
        if self._thread is None:
            # One thread for the whole run: if the system could not start one later, a running command would have to be
            # stopped for that.
            thread = threading.Thread(target=self._run, name="dislock-signals", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Loaded late, because signals are held back only after this module was loaded.
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
    """What the listening thread listens for."""

    def __init__(self, numbers: frozenset[int], receiver: Callable[[Arrival], None]) -> None:
        self.numbers = numbers
        self.receiver = receiver
        self.begun = threading.Event()  #: set when the thread listens for this and nothing else


def inherited() -> list[Disposition]:
    """Default dispositions in place of this interpreter's own, which a command must not inherit.

    ``exec`` resets caught signals (POSIX), but a signal that arrives just before it would go to a Python handler that
    never runs, and would be lost.
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
