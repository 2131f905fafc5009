"""The wrapper's own signals: held back from its first moment, and handed on one by one.

A signal that is blocked in every thread stays pending in the kernel until somebody asks for it. So nothing that
arrives is lost between two steps of a run, and no handler ever interrupts one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn


def _existing(*names: str) -> tuple[signal.Signals, ...]:
    # Windows lacks most; there this module is imported with the library and not used.
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


#: Signals that ask a command to end; they go to its whole process group.
ENDING = _existing("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
#: Signals whose meaning is the command's own; they go to the command alone, never to its children.
MESSAGES = _existing("SIGUSR1", "SIGUSR2")

# Wakes the listening thread. Sent to that thread alone, so it is never mistaken for one from outside, and nobody
# sends it from outside: the kernel does so only for a timer that counts a process's CPU time.
_WAKE: int = getattr(signal, "SIGVTALRM", 0)
# asm-generic/siginfo.h; the signal module does not name it. A sender in another PID namespace also shows as pid 0,
# so si_pid would not do.
_SI_KERNEL = 0x80
# The interpreter ignores these at its start; a command must find them as they are for any other program.
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ", "SIGXFZ")

Disposition = tuple[int, Any]
Deliver = Callable[[int, bool], None]


class Signals:
    """Receives the signals of a command line run; held back in the main thread before any other thread exists.

    TERM, INT, HUP, QUIT, USR1 and USR2 are blocked, so that later threads inherit the block, except those that came
    ignored (nohup): they stay ignored. Until a command runs, the first of TERM, INT, HUP and QUIT becomes ``received``;
    USR1 and USR2 stay pending, and reach the command when it starts; where it takes this process's place they end the
    run before that, as they would end a program that has no handler yet.

    A program that is about to end calls ``hold`` and gives nothing back: a signal between that and its end would
    replace its exit code. As a context manager this leaves everything as it was.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.mask: set[int] = set()  #: the signal mask as it came
        self._lock = threading.Lock()
        self._callback: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._task: _Task | None = None
        self._ending: frozenset[int] = frozenset()
        self._messages: frozenset[int] = frozenset()
        self._chld_ignored = False

    def __enter__(self) -> Signals:
        self.hold()
        return self

    def hold(self) -> None:
        """Hold signals back from here on. Starts no thread; KeyboardInterrupt, if it came before, is raised here."""
        self._ending = frozenset(n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN)
        self._messages = frozenset(n for n in MESSAGES if signal.getsignal(n) is not signal.SIG_IGN)
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._all | {_WAKE}))
        # Where SIGCHLD is ignored, the kernel reaps children by itself and their exit status is lost.
        self._chld_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if self._chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._give(None)
            self._thread.join()
            self._thread = None
        # Too late to mean anything: the work is over, and its result must not be replaced by a death.
        while late := signal.sigpending() & self._all:
            signal.sigwait(late)
        if self._chld_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    @property
    def _all(self) -> frozenset[int]:
        return self._ending | self._messages

    def on_early(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once, from another thread, when a signal asks to end before a command runs.

        A signal that came before this call counts: one that ``received`` tells of has ``callback`` called at once, by
        the caller. Raises ``DislockError`` when no thread is to be had.
        """
        with self._lock:
            self._callback = callback
            late = self.received is not None
        if late:
            callback()
        else:
            self._listen(self._ending, self._note_early)

    def listen(self, deliver: Deliver) -> None:
        """Hand every signal to ``deliver(number, from_kernel)``, called in another thread.

        ``from_kernel`` is True when the terminal sent it to the whole foreground group. Systems that do not say
        who sent a signal (macOS) pass True for INT and QUIT, which hardly anything but a terminal sends.

        After ``on_early`` this cannot fail; else it raises ``DislockError`` when no thread is to be had.
        """
        self._listen(self._all, deliver)

    def stop(self) -> int | None:
        """Stop listening. Returns the signal that asked to end, received or still pending, or None.

        From here on signals stay pending, until somebody listens again.
        """
        self.halt()
        if self.received is None:
            pending = self.pending()
            for number in ENDING:
                if number in pending:
                    signal.sigwait({number})
                    self.received = int(number)
                    break
        return self.received

    def pending(self) -> frozenset[int]:
        """Signals that ask to end, have arrived, and were not taken by anybody yet."""
        return self._ending.intersection(signal.sigpending())

    def take(self) -> int | None:
        """One of all signals that are held back, if any has arrived and was taken by nobody."""
        pending = self._all & signal.sigpending()
        return int(signal.sigwait(pending)) if pending else None

    def halt(self) -> None:
        """Stop listening, and leave what arrives pending."""
        if self._thread is not None:
            self._listen(frozenset(), self._note_early)

    def dispositions(self) -> list[Disposition]:
        """What a command's signal dispositions must be set to before its exec."""
        return inherited() + ([(signal.SIGCHLD, signal.SIG_IGN)] if self._chld_ignored else [])

    def _listen(self, numbers: frozenset[int], deliver: Deliver) -> None:
        task = _Task(numbers | {_WAKE}, deliver)
        self._give(task)
        if self._thread is None:
            # The same one for the whole run: later there may be none to be had, and a command that runs would have to
            # be ended for want of it.
            thread = threading.Thread(target=self._run, name="dislock-signals", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Not loaded before: until this module is there, nothing is held back.
                from dislock.errors import DislockError

                raise DislockError(f"no thread for signals: {error} (a limit on processes, or on memory)") from error
            self._thread = thread
        task.begun.wait()

    def _give(self, task: _Task | None) -> None:
        self._task = task
        if self._thread is not None and self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, _WAKE)

    def _run(self) -> None:
        while (task := self._task) is not None:
            task.begun.set()
            number, from_kernel = _next(task.numbers)
            if number != _WAKE:
                task.deliver(number, from_kernel)

    def _note_early(self, number: int, _from_kernel: bool) -> None:
        with self._lock:
            if self.received is not None:
                return
            self.received = number
            callback = self._callback
        if callback is not None:
            callback()


class _Task:
    """What the listening thread is to listen for."""

    def __init__(self, numbers: frozenset[int], deliver: Deliver) -> None:
        self.numbers = numbers
        self.deliver = deliver
        self.begun = threading.Event()  #: set when the thread waits for nothing else any more


def inherited() -> list[Disposition]:
    """The dispositions that this interpreter's own would spoil for a command.

    ``exec`` resets caught signals by itself, but one that arrives just before would go to a Python handler that
    never runs, and be lost.
    """
    caught = {int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))}
    spoilt = {int(getattr(signal, name)) for name in _IGNORED_BY_PYTHON if hasattr(signal, name)}
    return [(number, signal.SIG_DFL) for number in sorted(caught | spoilt)]


def die_of_interrupt() -> NoReturn:
    """End this process by SIGINT, as the command did.

    A shell stops its loop or script at Ctrl-C only when the command that it waits for died by SIGINT; an exit code of
    130 means to it that the signal was dealt with.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Reached only where the signal cannot kill: as PID 1 of a namespace.
    os._exit(128 + signal.SIGINT)


def _next(numbers: frozenset[int]) -> tuple[int, bool]:
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(numbers)
        return int(info.si_signo), info.si_code == _SI_KERNEL
    number = int(signal.sigwait(numbers))
    return number, number in (signal.SIGINT, signal.SIGQUIT)
