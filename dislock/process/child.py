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

from dislock.process.executable import Environment, as_script, not_started
from dislock.process.outcomes import NotStarted
from dislock.process.signals import ENDING, Disposition
from dislock.process.states import Course, Demand, Life

if TYPE_CHECKING:
    from subprocess import Popen

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Started:
    """The command runs. ``unsure`` are signals to the wrapper that came when the command may not have existed yet."""

    unsure: frozenset[int]


@dataclass(frozen=True)
class Over:
    """The command has ended, or could not be started."""


class Child:
    """One command. A thread of its own forks it and waits for its end; only the owner of this object reaps it.

    That thread forks for two reasons. An exception in the owner's thread (KeyboardInterrupt) could come between the
    fork and the moment when its result is known. And the parent-death signal follows the thread that forked, which
    must therefore live as long as the command. It reports ``Started`` once the process exists, and ``Over`` last.
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
        course: Course,
        report: Callable[[Started | Over], None],
    ) -> None:
        """``mask`` is the command's signal mask, the caller's when None; ``orphans``: reap strangers (as PID 1)."""
        self.own_group = own_group
        self._command = list(command)
        self._environment = environment
        self._dispositions = list(dispositions)
        self._mask = mask
        self._orphans = orphans
        self._course = course
        self._report = report
        # Looked up before the fork: after it nothing may be imported.
        self._set_death_signal = _death_signal_setter()
        # Loading this takes a while on a busy machine. Now, because a start should follow its decision at once.
        import subprocess  # noqa: F401 - used in `_spawn`

        self._process: Popen[bytes] | None = None
        self.failure: NotStarted | None = None  #: why the command could not be started

    def start(self) -> None:
        """Start the command. What happens to it is reported."""
        thread = threading.Thread(target=self._run, name="dislock-command", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes, most likely
            raise NotStarted(126, f"cannot run {self._command[0]!r}: {error}") from error

    def prevent(self) -> bool:
        """Never start the command. False: it has begun, which cannot be taken back."""
        self._course.step(Life.PREVENTED)
        return not self._course.life.begun

    def stop(self) -> None:
        """Send SIGTERM to the command, once, now or as soon as it exists."""
        self._demand(Demand.STOP)

    def kill(self) -> None:
        """Kill the command, now or as soon as it exists."""
        self._demand(Demand.KILL)

    def ask(self, number: int) -> None:
        """Pass on a signal that asks to end."""
        self._course.raise_to(Demand.END)
        self.send(number)

    def send(self, number: int) -> None:
        """Send a signal to the command's group, or to the command alone where the group is the wrapper's own."""
        if self._process is not None and self._course.life.reachable:
            # It has ended meanwhile, or runs as another user now. That is no reason to stop waiting for it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if self.own_group else os.kill)(self._process.pid, number)

    def send_to_leader(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self._process is not None and self._course.life.reachable:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)

    def rest_runs(self) -> bool:
        """Whether others of the command's own group still run. False where there is no ``/proc``."""
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
            self._course.step(Life.REAPED)
            process.returncode = -1
            raise ChildProcessError(
                errno.ECHILD,
                "the command has ended, but other code in this process took its exit status "
                "(a handler that waits for every child, or SIGCHLD set to be ignored)",
            ) from None
        self._course.step(Life.REAPED)
        code = os.waitstatus_to_exitcode(status)
        # The object itself would believe that its process still runs.
        process.returncode = code
        return code

    def _demand(self, demand: Demand) -> None:
        life = self._course.raise_to(demand)
        if life is not None and life.reachable:
            self._carry_out(demand)

    def _carry_out(self, demand: Demand) -> None:
        if demand is Demand.KILL:
            self.send(signal.SIGKILL)
        elif demand is Demand.STOP:
            self.send(signal.SIGTERM)
            # A stopped process would not notice before the SIGKILL.
            self.send(signal.SIGCONT)

    def _run(self) -> None:
        # What arrives between fork and exec waits until the dispositions are the command's own. Besides, this
        # thread has no use for signals.
        came = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        mask = set(came) if self._mask is None else self._mask
        if self._course.step(Life.STARTING) is None:
            return
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
        self._process = process
        if demand := self._course.step(Life.RUNNING):
            self._carry_out(demand)
        # The terminal's signals go to the whole group, but one that is pending here may have come before the fork.
        pid = process.pid
        self._report(Started(frozenset(ENDING).intersection(signal.sigpending())))
        with contextlib.suppress(ChildProcessError):  # other code reaped it: `reap` will say so
            _await_end(pid, orphans=self._orphans)
        self._course.step(Life.ENDED)
        self._report(Over())

    def _fail(self, failure: NotStarted) -> None:
        self.failure = failure
        self._course.step(Life.FAILED)
        self._report(Over())

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
