"""Talks to a database that may not answer: connects, asks, and tries a statement again."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

from dislock.protocol.plan import Senses
from dislock.protocol.statements import READS, AnyStatement
from dislock.protocol.steps import (
    HAD_TO_WAIT,
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
    proven,
    silent,
    together,
    trouble,
)

#: Seconds between two tries to reach the database: the first pause is doubled until it is the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

#: Seconds that a statement has on a connection that worked a moment ago, before a new one is opened.
FIRST_TRY = 1.0

#: Seconds that must be left for another try of a statement that had to wait until it was cancelled. With less, its next
#: cancellation might come too late, and it would be carried out for nobody.
AFTER_CANCELLED = 2.5

#: Makes a statement from the moment at which it is sent and the moment by which its answer must be there.
Make = Callable[[float, float], AnyStatement]


class Conversation:
    """One connection at a time, to the first of ``targets`` that accepts one. It tries again while there is time."""

    def __init__(self, targets: tuple[str, ...], senses: Senses, longest_try: float) -> None:
        """``longest_try``: the longest time of one try in seconds, however much time is left."""
        self._targets = targets
        self._longest_try = longest_try
        self._clock, self._wall, self._chance = senses.clock, senses.wall, senses.chance
        self._connected = False
        #: When the last statement was sent, and when one was last answered.
        self._sent = self._answered = -math.inf
        #: Whether a statement of the last ``_insist`` may have been carried out although its answer was lost.
        self._doubtful = False

    def _insist(self, make: Make, by: float, *, repeat: bool = True, prove: bool = False) -> Steps[Answer]:
        """Asks until the statement was carried out, or until there is no time left.

        The answer may carry a doubt; with ``prove=True`` only if there was no time left to ask again. ``repeat=False``:
        does not ask again if the statement may have been carried out. A slot ends at the same moment for everyone, so a
        repeated give-back could free it from a process with the same owner string that took it after the first one.
        """
        self._doubtful = False
        for attempt in count():
            answer = yield from self._ask(make, min(by, self._clock() + self._longest_try))
            permanent = isinstance(answer, Failed) and answer.failure.permanent
            settled = proven(answer) if prove else isinstance(answer, Done)
            if settled or answer.leave or permanent or (self._doubtful and not repeat):
                return answer
            # Random, so that many hosts that start at the same moment do not try again at the same moment.
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 16)) * (0.5 + self._chance())
            least = AFTER_CANCELLED if trouble(answer) == HAD_TO_WAIT else 0.0
            if self._clock() + pause + least >= by:
                return answer
            if (yield Wait(self._clock() + pause)).leave:
                return answer._replace(leave=True)
        raise AssertionError("count() does not end")

    def _ask(self, make: Make, by: float) -> Steps[Answer]:
        """One try: connects if necessary, then makes the statement, and carries it out at once."""
        if not self._connected and (failed := (yield from self._reach(by))):
            return failed
        self._sent = self._clock()
        statement = make(self._sent, by)
        answer = yield Execute(statement, by)
        if isinstance(answer, Unanswered) or (isinstance(answer, Failed) and answer.failure.broken):
            self._connected = False
            self._doubtful = not isinstance(statement, READS) or self._doubtful
        else:
            self._answered = self._clock()
            if isinstance(answer, Done) and answer.sent is not None:
                self._sent = answer.sent
        return answer

    def _ask_again(self, make: Make, by: float, fresh: float, *, prove: bool = False) -> Steps[Answer]:
        """Asks on the current connection if its last answer is younger than ``fresh`` seconds, then on a new one.

        ``prove`` is as in ``_insist``. A connection that died unnoticed costs ``FIRST_TRY`` seconds.
        """
        now = self._clock()
        lost = self._doubtful = False
        if self._connected and now - self._answered <= fresh:
            answer = yield from self._ask(make, min(by, now + FIRST_TRY))
            if proven(answer):
                return answer
            lost = self._doubtful
        if self._connected:
            # If no new connection can be opened, this one stays.
            yield from self._reach(self._clock() + (by - self._clock()) / 2)
        answer = yield from self._insist(make, by, prove=prove)
        self._doubtful = self._doubtful or lost
        return answer

    def _reach(self, by: float) -> Steps[Failed | None]:
        """Connects to the first target that accepts; each gets an equal share of the time that is left."""
        failures: list[Failure] = []
        leave = False
        for index, name in enumerate(self._targets):
            now = self._clock()
            answer = yield Connect(index, now + (by - now) / (len(self._targets) - index))
            if isinstance(answer, Done):
                self._connected = True
                # A request to leave is reported only once, so it must be passed on.
                return Failed(Failure("asked to leave"), leave=True) if answer.leave else None
            failures.append(answer.failure if isinstance(answer, Failed) else silent(name))
            leave = answer.leave
            if leave:
                break
        return Failed(together(failures), leave)

    def _close(self) -> Steps[None]:
        self._connected = False
        yield Close()
