"""What can come of a command: how it ended, or why it never began."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """An order to stop a command: SIGTERM now, SIGKILL when ``grace`` seconds have passed."""

    grace: float


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    ``code`` follows the shell: 128+N for a death by signal N. ``stopped``: a ``Stop`` came before the command had
    ended, whatever its code; or before it had begun, and then it never did. ``interrupted``: the command died by SIGINT
    in the foreground of a terminal, and a shell that waits for us should see us die the same way
    (``ending.die_of_interrupt``).
    """

    code: int
    stopped: bool = False
    interrupted: bool = False


class NeverBegan(Exception):  # noqa: N818 - a result that the caller turns into an exit code
    """The command was not started, and will not be; ``code`` is the exit code that says so."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotStarted(NeverBegan):
    """The command could not be started; ``code`` is the shell's: 127 for not found, 126 for anything else."""


class Interrupted(NeverBegan):
    """Signal ``number`` asked to end before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number, f"signal {number} came before the command was started")
        self.number = number


class NoThreadError(Exception):
    """The system has no thread to spare: a limit on processes, or on memory."""
