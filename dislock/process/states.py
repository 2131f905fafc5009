"""The states of a command: where it is in its life, and what has been demanded of it. Every step is taken here."""

from __future__ import annotations

import threading
from enum import Enum, IntEnum


class Life(Enum):
    """Where a command is, from the decision to run it until nothing is left of it."""

    PLANNED = "planned"  #: nothing has been started; the start can still be prevented
    STARTING = "starting"  #: the fork is under way and cannot be taken back
    RUNNING = "running"  #: the process exists
    ENDED = "ended"  #: the process is a zombie: its number, and its group's, are still its own
    REAPED = "reaped"  #: its exit status was collected; its number may belong to another process by now
    PREVENTED = "prevented"  #: it was never started, and never will be
    FAILED = "failed"  #: it could not be started

    @property
    def begun(self) -> bool:
        """Whether the command counts as begun. While the fork is under way it does: it may run at any moment."""
        return self in (Life.STARTING, Life.RUNNING, Life.ENDED, Life.REAPED)

    @property
    def reachable(self) -> bool:
        """Whether a signal to the command's number reaches the command, and nobody else."""
        return self in (Life.RUNNING, Life.ENDED)

    @property
    def over(self) -> bool:
        """Whether nothing runs, or ever will."""
        return self in (Life.ENDED, Life.REAPED, Life.PREVENTED, Life.FAILED)


class Demand(IntEnum):
    """What has been demanded of a command. It only rises."""

    NOTHING = 0  #: it runs as long as it likes
    END = 1  #: a signal that was passed on asked it to end; the sender decides how long that may take
    STOP = 2  #: SIGTERM, and SIGKILL when the grace period is over
    KILL = 3  #: SIGKILL


#: The steps of a life. No other exists.
NEXT: dict[Life, frozenset[Life]] = {
    Life.PLANNED: frozenset({Life.STARTING, Life.PREVENTED}),
    Life.STARTING: frozenset({Life.RUNNING, Life.FAILED}),
    Life.RUNNING: frozenset({Life.ENDED}),
    Life.ENDED: frozenset({Life.REAPED}),
    Life.REAPED: frozenset(),
    Life.PREVENTED: frozenset(),
    Life.FAILED: frozenset(),
}


class Course:
    """The life of one command and what is demanded of it, for the two threads that move them.

    Each of the two methods returns the other half as it was in the same moment. So exactly one thread carries out a
    demand: whoever makes it if the process exists by then, else the thread that starts the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.life = Life.PLANNED
        self.demand = Demand.NOTHING

    def step(self, to: Life) -> Demand | None:
        """Go on to ``to``, and return what is demanded. None: there is no such step from here, and none was taken."""
        with self._lock:
            if to not in NEXT[self.life]:
                return None
            self.life = to
            return self.demand

    def raise_to(self, demand: Demand) -> Life | None:
        """Demand this, and return where the command is. None: as much had been demanded before."""
        with self._lock:
            if demand <= self.demand:
                return None
            self.demand = demand
            return self.life
