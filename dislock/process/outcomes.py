"""The possible results of a command: how it ended, or why it never began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """An order to stop a command: SIGTERM now, SIGKILL when ``grace`` seconds have passed."""

    grace: float


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    ``code`` is as in the shell: 128+N if signal N killed the command. ``stopped``: a ``Stop`` came before the command
    had ended, whatever its code; or before it had begun, so that it never began. ``interrupted``: SIGINT killed the
    command in the foreground of a terminal, and this process should die in the same way, for the shell that waits for
    it (``ending.die_of_interrupt``).
    """

    code: int
    stopped: bool = False
    interrupted: bool = False


class NeverBegan(Exception):  # noqa: N818 - not an error: the caller turns it into an exit code
    """The command was not started, and will not be. ``code`` is the exit code for that."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotStarted(NeverBegan):
    """The command could not be started. ``code`` is as in the shell: 127 if it was not found, 126 for anything else."""


class Interrupted(NeverBegan):
    """Signal ``number`` asked to end before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number, f"signal {number} came before the command was started")
        self.number = number


class NoThreadError(Exception):
    """The system cannot start another thread: a limit on processes, or on memory."""
