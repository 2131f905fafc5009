"""Talking to a database that may not answer: connecting, asking, asking again. No I/O; see ``steps``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from dislock.protocol.plan import Senses
from dislock.protocol.statements import Statement
from dislock.protocol.steps import (
    Answer,
    Close,
    Connect,
    Done,
    Execute,
    Failed,
    Failure,
    Steps,
    Unanswered,
    Wait,
    silent,
    together,
)

#: Seconds between two tries to reach the database: the first pause, doubled up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

#: Makes a statement from the moment at which it is sent and the moment by which its answer must be there.
Make = Callable[[float, float], Statement]


class Conversation:
    """One connection at a time, to the first of ``targets`` that can be had; tried again as long as there is time."""

    def __init__(self, targets: tuple[str, ...], senses: Senses) -> None:
        self._targets = targets
        self._clock, self._chance = senses.clock, senses.chance
        self._connected = False
        #: Whether a statement of the last ``_insist`` may have been carried out although its answer was lost.
        self._doubtful = False

    def _insist(self, make: Make, by: float, *, repeat: bool = True) -> Steps[Answer]:
        """Asks until there is an answer that counts, or until there is no time left.

        ``repeat=False``: not once more when it may have been carried out. A slot ends at the same moment for everyone,
        so a repeated give-back could free it from a namesake who took it after the first.
        """
        self._doubtful = False
        for attempt in count():
            answer = yield from self._ask(make, by)
            permanent = isinstance(answer, Failed) and answer.failure.permanent
            if isinstance(answer, Done) or answer.leave or permanent or (self._doubtful and not repeat):
                return answer
            # Random, so that many hosts that start at one moment do not come back at one moment.
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 16)) * (0.5 + self._chance())
            if self._clock() + pause >= by:
                return answer
            if (yield Wait(self._clock() + pause)).leave:
                return answer._replace(leave=True)
        raise AssertionError("count() does not end")

    def _ask(self, make: Make, by: float) -> Steps[Answer]:
        """One try: connects if need be, and carries out the statement, made at the moment at which it is sent."""
        if not self._connected and (failed := (yield from self._reach(by))):
            return failed
        answer = yield Execute(make(self._clock(), by), by)
        if isinstance(answer, Unanswered) or (isinstance(answer, Failed) and answer.failure.broken):
            self._connected = False
            self._doubtful = True
        return answer

    def _reach(self, by: float) -> Steps[Failed | None]:
        """Connects to the first target that can be had; each gets an equal share of the time that is left."""
        failures: list[Failure] = []
        leave = False
        for index, name in enumerate(self._targets):
            now = self._clock()
            answer = yield Connect(index, now + (by - now) / (len(self._targets) - index))
            if isinstance(answer, Done):
                self._connected = True
                # Told once only: whoever wanted the connection must hear it.
                return Failed(Failure("told to leave"), leave=True) if answer.leave else None
            failures.append(answer.failure if isinstance(answer, Failed) else silent(name))
            leave = answer.leave
            if leave:
                break
        return Failed(together(failures), leave)

    def _close(self) -> Steps[None]:
        self._connected = False
        yield Close()
