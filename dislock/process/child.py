"""The command as a process: started, signalled and reaped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dislock.process.executable import Environment, NotStarted, as_script, not_started
from dislock.process.signals import ENDING, Disposition

if TYPE_CHECKING:
    from subprocess import Popen

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Beginning:
    """Whether a command has begun: final when ``supervise`` is over, however it ended.

    To be made by the caller, who has to know it after an exception too: what was never begun is no use of a slot.
    """

    happened = False


@dataclass(frozen=True)
class Started:
    """The command runs. ``unsure`` are signals to the wrapper that came when the command may not have existed yet."""

    unsure: frozenset[int]


@dataclass(frozen=True)
class Failed:
    """The command does not run, because of ``error``."""

    error: BaseException


@dataclass(frozen=True)
class Gone:
    """The command has ended; it is a zombie until it is reaped, so its number and its group's are still its own."""


class Child:
    """One command. A thread of its own forks it and waits for its end; only the owner of this object reaps it.

    That thread does the fork because an exception thrown into the owner's (KeyboardInterrupt) could come between the
    fork and the moment when its result is known, and because the parent-death signal follows the thread that forked: it
    must live as long as the command. The events ``Started`` or ``Failed``, then ``Gone``, go to ``report``.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Environment | None,
        *,
        dispositions: Sequence[Disposition],
        mask: set[int] | None,
        own_group: bool,
        orphans: bool,
        beginning: Beginning,
        report: Callable[[Started | Failed | Gone], None],
    ) -> None:
        """``mask`` is the command's signal mask, the caller's when None; ``orphans``: reap strangers (as PID 1)."""
        self.own_group = own_group
        self._command = list(command)
        self._environment = environment
        self._dispositions = list(dispositions)
        self._mask = mask
        self._orphans = orphans
        self._beginning = beginning
        self._report = report
        # Looked up before the fork: after it nothing may be imported.
        self._set_death_signal = _death_signal_setter()
        # Loading this takes a while on a busy machine: not when the lease has been found good for a start.
        import subprocess  # noqa: F401 - used in `_spawn`

        self._process: Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        self._doomed = False
        self.over = False  #: nothing runs any more, or ever will; set before the last event is reported

    def start(self) -> None:
        """Start the command; what becomes of it is told to ``report``."""
        thread = threading.Thread(target=self._run, name="dislock-command", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had: a limit on processes, most likely
            raise NotStarted(126, f"cannot run {self._command[0]!r}: {error}") from error

    def abandon(self) -> bool:
        """Never start the command. False if that is too late, and ``report`` tells or told what became of it."""
        with self._lock:
            self._abandoned = True
            return not self._beginning.happened

    def kill(self) -> None:
        """Kill the command, at once or as soon as it exists: what decided that does not come a second time."""
        with self._lock:
            self._doomed = True
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal to the command's group, or to the command alone where the group is the wrapper's own."""
        if self._process is None:
            return
        # Nobody left to take it, or one who changed to another user: no reason to stop waiting for it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if self.own_group else os.kill)(self._process.pid, number)

    def send_to_leader(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)

    @property
    def unreaped(self) -> bool:
        """Whether the command was started and ``reap`` has not been called yet."""
        return self._process is not None

    def rest_runs(self) -> bool:
        """Whether others of the command's own group still run. False where the system has no ``/proc`` to tell."""
        return self.own_group and self._process is not None and _runs(self._process.pid)

    def kill_rest(self) -> None:
        """Kill what is left of the command's own group. To be called before ``reap``."""
        if self.own_group:
            self.send(signal.SIGKILL)

    def reap(self) -> int:
        """How the command ended: its exit code, or the negative number of the signal that killed it."""
        process = self._process
        assert process is not None
        try:
            _, status = os.waitpid(process.pid, 0)
        except ChildProcessError:
            self._process, process.returncode = None, -1
            raise ChildProcessError(
                errno.ECHILD,
                "the command has ended, but its exit status was taken by somebody else in this process "
                "(a handler that waits for every child, or SIGCHLD set to be ignored)",
            ) from None
        code = os.waitstatus_to_exitcode(status)
        # From here on its number may be another's. The object itself would believe that its process still runs.
        self._process, process.returncode = None, code
        return code

    def _run(self) -> None:
        # What arrives between fork and exec waits until the dispositions are the command's own. Besides, this
        # thread has no use for signals.
        came = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        mask = set(came) if self._mask is None else self._mask
        with self._lock:
            if self._abandoned:
                return
            self._beginning.happened = True
        try:
            try:
                process = self._spawn(self._command, None, mask)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                script = as_script(self._command, self._environment)
                process = self._spawn(script, script[0], mask)
        except OSError as error:
            self._fail(not_started(self._command, self._environment, error))
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the command does not run
            self._fail(NotStarted(126, f"cannot run {self._command[0]!r}: {error}"))
            return
        with self._lock:
            self._process = process
            doomed = self._doomed
        if doomed:
            self.send(signal.SIGKILL)
        # The terminal's signals go to the whole group, but one that is pending here may have come before the fork.
        pid = process.pid
        self._report(Started(frozenset(ENDING).intersection(signal.sigpending())))
        with contextlib.suppress(ChildProcessError):  # somebody else reaped it: `reap` will say so
            _await_end(pid, orphans=self._orphans)
        self._end(Gone())

    def _fail(self, error: NotStarted) -> None:
        self._beginning.happened = False
        self._end(Failed(error))

    def _end(self, event: Failed | Gone) -> None:
        self.over = True
        self._report(event)

    def _spawn(self, command: list[str], executable: str | None, mask: set[int]) -> Popen[bytes]:
        from subprocess import Popen

        parent = os.getpid()
        own_group, dispositions, set_death_signal = self.own_group, self._dispositions, self._set_death_signal

        def prepare() -> None:
            # Runs between fork and exec, where other threads' locks may be held for ever: only plain system calls.
            if own_group:
                os.setpgid(0, 0)
            for number, handler in dispositions:
                signal.signal(number, handler)
            if set_death_signal is not None:
                set_death_signal(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                # A parent that died before the call sends nothing.
                if os.getppid() != parent:
                    os._exit(126)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        if not command[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # Popen is the fork that CPython itself keeps right: it holds the import lock, reports a failed exec
        # through a pipe, and searches the PATH of the environment that it passes on.
        return Popen(  # noqa: S603 - running what the user names is the purpose
            command,
            executable=executable,
            env=self._environment,
            close_fds=False,
            preexec_fn=prepare,  # noqa: PLW1509 - nothing else can set the parent-death signal
        )


def _death_signal_setter() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        function = ctypes.CDLL(None).prctl
        function.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    except (ImportError, OSError, AttributeError):
        return None  # an interpreter built without ctypes, or linked statically: the command then outlives a SIGKILL
    result: Callable[..., int] = function
    return result


def _runs(group: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything; after it come the state, the parent and the group.
            fields = status.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
            return True
    return False


def _await_end(pid: int, *, orphans: bool) -> None:
    """Return when the child ``pid`` has ended, without reaping it; meanwhile reap the others if ``orphans``."""
    if orphans:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None and ended.si_pid != pid:
            os.waitpid(ended.si_pid, 0)
    elif hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    else:
        _await_end_by_kqueue(pid)


def _await_end_by_kqueue(pid: int) -> None:
    """The same where Python has no ``waitid``: macOS before Python 3.13."""
    import select

    kernel: Any = select  # the type stubs show these names on BSD and macOS only
    ended = kernel.kevent(pid, kernel.KQ_FILTER_PROC, kernel.KQ_EV_ADD | kernel.KQ_EV_ONESHOT, kernel.KQ_NOTE_EXIT)
    with contextlib.closing(kernel.kqueue()) as queue, contextlib.suppress(ProcessLookupError):  # it has ended already
        queue.control([ended], 1)
