"""The states of a command: where it is in its life, and what was demanded of it. Every step is taken here."""

from __future__ import annotations

import threading
from enum import Enum, IntEnum


class Life(Enum):
    """Where a command is in its life, from the plan to run it to the collection of its exit code."""

    PLANNED = "planned"  #: nothing has been started; the start can still be prevented
    STARTING = "starting"  #: the fork is under way and cannot be undone
    RUNNING = "running"  #: the process exists
    ENDED = "ended"  #: the process is a zombie: no other process can get its number or its group's
    REAPED = "reaped"  #: its exit status was collected; another process may have its number
    PREVENTED = "prevented"  #: it was never started, and never will be
    FAILED = "failed"  #: it could not be started

    @property
    def begun(self) -> bool:
        """Whether the command counts as begun. It does during the fork, because it may run at any moment."""
        return self in (Life.STARTING, Life.RUNNING, Life.ENDED, Life.REAPED)

    @property
    def reachable(self) -> bool:
        """Whether a signal to the command's number reaches the command, and nobody else."""
        return self in (Life.RUNNING, Life.ENDED)

    @property
    def over(self) -> bool:
        """Whether nothing runs, and nothing will."""
        return self in (Life.ENDED, Life.REAPED, Life.PREVENTED, Life.FAILED)


class Demand(IntEnum):
    """What was demanded of a command. It only rises."""

    NOTHING = 0  #: it runs as long as it needs
    END = 1  #: a passed-on signal asked it to end; the sender decides how long that may take
    STOP = 2  #: SIGTERM, and SIGKILL when the grace period is over
    KILL = 3  #: SIGKILL


#: All possible steps.
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
    """The life of one command and the demand on it, for the two threads that change them.

    Each of the two methods changes one and returns the other, as it was at the same moment. So exactly one thread
    carries out a demand: the thread that makes it if the process exists, else the thread that starts the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.life = Life.PLANNED
        self.demand = Demand.NOTHING

    def step(self, to: Life) -> Demand | None:
        """Goes on to ``to`` and returns what is demanded. None: there is no such step, and none was taken."""
        with self._lock:
            if to not in NEXT[self.life]:
                return None
            self.life = to
            return self.demand

    def raise_to(self, demand: Demand) -> Life | None:
        """Demands this and returns where the command is. None: as much was demanded before."""
        with self._lock:
            if demand <= self.demand:
                return None
            self.demand = demand
            return self.life
