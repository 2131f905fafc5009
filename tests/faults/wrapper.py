"""The program as a user starts it, around a command that waits to be told how to end."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.wait import until

#: The command says who it is and what it was told, and waits; a word in its pipe is its exit code.
WAITS = r"""
env | grep ^DISLOCK_ >"$FOLDER/told"; echo $$ >"$FOLDER/new" && mv "$FOLDER/new" "$FOLDER/pid"
read code <"$FOLDER/pipe"; exit "$code"
"""
#: For a machine that is busy with other tests as well.
PATIENCE = 30.0
#: What would change the meaning of a run when it came from the shell of whoever runs the tests.
_OWN = ("LOCK_", "CRON", "RUN_LOCK_", "DISLOCK_", "PG", "DATABASE_URL")


def program() -> list[str]:
    """The command under test: DISLOCK_TEST_COMMAND in shell words (a built zipapp, say), or this checkout's."""
    given = os.environ.get("DISLOCK_TEST_COMMAND", "").strip()
    return shlex.split(given) if given else [sys.executable, "-m", "dislock"]


def environment(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment without what concerns locks or libpq, and with the settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    return {**inherited, **{name: str(value) for name, value in settings.items()}}


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended; one that waits to be reaped has."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Run:
    """One wrapper with one command, each in its own folder; a context manager that leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        url: str,
        settings: Mapping[str, object],
        *,
        command: Sequence[str] = ("sh", "-c", WAITS),
        before: Sequence[str] = (),
    ) -> None:
        """``before`` is what starts the wrapper (``unshare`` and the like)."""
        self.folder = folder
        folder.mkdir(parents=True)
        os.mkfifo(folder / "pipe")
        self.began = time.monotonic()
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*before, *program(), "DATABASE_URL", *command],
                env=environment({"DATABASE_URL": url, "FOLDER": folder, **settings}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # No terminal's signals, and no terminal to be in the foreground of.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The wrapper's."""
        return self.process.pid

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    @property
    def started(self) -> bool:
        """Whether the command was ever started."""
        return (self.folder / "pid").exists()

    @property
    def command(self) -> int:
        """The command's process id."""
        return int((self.folder / "pid").read_text())

    @property
    def told(self) -> dict[str, str]:
        """What the command found in its environment about its locks."""
        pairs = (line.partition("=") for line in (self.folder / "told").read_text().splitlines())
        return {name: value for name, _, value in pairs}

    def up(self) -> Run:
        """Waits until the command runs."""

        def look() -> bool:
            assert self.process.poll() is None or self.started, f"it ended with {self.process.poll()}: {self.err}"
            return self.started

        until(look, PATIENCE, "the start of the command")
        return self

    def tell(self, code: int = 0) -> Run:
        """Has the command end with that code."""
        # Not blocking: a command that is gone has no end of the pipe open, and then there is nobody to tell.
        pipe = until(self._open_pipe, PATIENCE, "the command's readiness")
        assert pipe is not None
        with os.fdopen(pipe, "w") as file:
            file.write(f"{code}\n")
        return self

    def _open_pipe(self) -> int | None:
        with contextlib.suppress(OSError):
            return os.open(self.folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        return None

    def send(self, number: int) -> Run:
        self.process.send_signal(number)
        return self

    def code(self, seconds: float = PATIENCE) -> int:
        """Waits for the wrapper's end; by the shell's rule, so that a death by signal N is 128+N."""
        code = self.process.wait(seconds)
        return code if code >= 0 else 128 - code

    def ended(self, seconds: float = PATIENCE) -> tuple[int, str]:
        """The exit code and what was written to standard error."""
        return self.code(seconds), self.err

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        pids = [self.process.pid] + ([self.command] if self.started else [])
        with contextlib.suppress(psutil.NoSuchProcess):
            pids += [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if self.process.returncode is None or pid != self.process.pid:
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
