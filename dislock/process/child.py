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
    """The command runs. ``unsure``: signals to the wrapper that may have come before the command existed."""

    unsure: frozenset[int]


@dataclass(frozen=True)
class Over:
    """The command has ended, or could not be started."""


class Child:
    """One command. A separate thread forks it and waits for its end; only the owner of this object reaps it.

    That thread forks for two reasons. In the owner's thread an exception (KeyboardInterrupt) could come after the fork
    and before its result is known. And the kernel sends the parent-death signal when the thread that forked ends
    (prctl(2)), so that thread must live as long as the command. It reports ``Started`` when the process exists, and
    ``Over`` at the end.
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
        """``mask``: the command's signal mask; None: the caller's. ``orphans``: reap all children, as PID 1 must."""
        self.own_group = own_group
        self._command = list(command)
        self._environment = environment
        self._dispositions = list(dispositions)
        self._mask = mask
        self._orphans = orphans
        self._course = course
        self._report = report
        # Nothing may be imported between fork and exec.
        self._set_death_signal = _death_signal_setter()
        # Loading this takes a while on a busy machine, and must not delay a start that has been decided.
        import subprocess  # noqa: F401 - used in `_spawn`

        self._process: Popen[bytes] | None = None
        self.failure: NotStarted | None = None  #: why the command could not be started

    def start(self) -> None:
        """Starts the command. Reports what happens to it."""
        thread = threading.Thread(target=self._run, name="dislock-command", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes, most likely
            raise NotStarted(126, f"cannot run {self._command[0]!r}: {error}") from error

    def prevent(self) -> bool:
        """Keeps the command from being started. False: it has begun, which cannot be undone."""
        self._course.step(Life.PREVENTED)
        return not self._course.life.begun

    def stop(self) -> None:
        """Sends SIGTERM to the command once, now or as soon as it exists."""
        self._demand(Demand.STOP)

    def kill(self) -> None:
        """Kills the command, now or as soon as it exists."""
        self._demand(Demand.KILL)

    def ask(self, number: int) -> None:
        """Passes on a signal that asks the command to end."""
        self._course.raise_to(Demand.END)
        self.send(number)

    def send(self, number: int) -> None:
        """Sends a signal to the command's group, or to the command alone if the group is the wrapper's own."""
        if self._process is not None and self._course.life.reachable:
            # The command has ended meanwhile, or runs as another user now: keep waiting for it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if self.own_group else os.kill)(self._process.pid, number)

    def send_to_leader(self, number: int) -> None:
        """Sends a signal to the command alone."""
        if self._process is not None and self._course.life.reachable:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)

    def rest_runs(self) -> bool:
        """Whether other processes of the command's own group still run. False without ``/proc``."""
        return self.own_group and self._process is not None and _runs(self._process.pid)

    def kill_rest(self) -> None:
        """Kills what is left of the command's own group. Must be called before ``reap``."""
        if self.own_group:
            self.send(signal.SIGKILL)

    def reap(self) -> int:
        """Reaps the command. Returns its exit code, or the negative number of the signal that killed it.

        Raises ``ChildProcessError`` if other code in this process has taken the exit status.
        """
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
        # Without it the object would assume that its process still runs.
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
            # A stopped process would get the SIGTERM only when it is continued.
            self.send(signal.SIGCONT)

    def _run(self) -> None:
        # A signal that arrives between fork and exec must wait until the dispositions are the command's own.
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
        except Exception as error:  # noqa: BLE001 - after any error the command does not run
            self._fail(NotStarted(126, f"cannot run {self._command[0]!r}: {error}"))
            return
        self._process = process
        if demand := self._course.step(Life.RUNNING):
            self._carry_out(demand)
        # The terminal signals the whole group, but a signal that is pending here may have come before the fork.
        pid = process.pid
        self._report(Started(frozenset(ENDING).intersection(signal.sigpending())))
        with contextlib.suppress(ChildProcessError):  # other code reaped it: `reap` reports that
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
            # Between fork and exec only plain system calls are safe: other threads' locks may be held for ever.
            if own_group:
                os.setpgid(0, 0)
            for number, handler in dispositions:
                signal.signal(number, handler)
            if set_death_signal is not None:
                set_death_signal(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                # If the parent died before the call, there is no signal.
                if os.getppid() != parent:
                    os._exit(126)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        if not command[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # Popen handles the details of a fork: it holds the import lock, reports a failed exec through a pipe, and
        # searches the PATH of the environment that it passes on.
        return Popen(  # noqa: S603 - the purpose is to run what the user names
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
        return None  # no ctypes, or a static interpreter: the command then outlives a SIGKILL of this process
    result: Callable[..., int] = function
    return result


def _runs(group: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything. The state, the parent and the group follow it (proc(5)).
            fields = status.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[2]) == group and fields[0] not in (b"Z", b"X"):
            return True
    return False


def _await_end(pid: int, *, orphans: bool) -> None:
    """Returns when the child ``pid`` has ended, without reaping it. ``orphans``: reaps the others meanwhile."""
    if orphans:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None and ended.si_pid != pid:
            os.waitpid(ended.si_pid, 0)
    elif hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    else:
        _await_end_by_kqueue(pid)


def _await_end_by_kqueue(pid: int) -> None:
    """The same for a Python without ``waitid``: macOS before Python 3.13."""
    import select

    kernel: Any = select  # the type stubs show these names on BSD and macOS only
    ended = kernel.kevent(pid, kernel.KQ_FILTER_PROC, kernel.KQ_EV_ADD | kernel.KQ_EV_ONESHOT, kernel.KQ_NOTE_EXIT)
    with contextlib.closing(kernel.kqueue()) as queue, contextlib.suppress(ProcessLookupError):  # it has ended already
        queue.control([ended], 1)
