"""The record of a run in the journal: its start, its end, and the deletion of old ones.

The journal does not affect a lock or a run: its statements are separate, each has little time, none is tried again, and
a failure is one WARNING and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dislock.events import DEBUG, INFO, WARNING
from dislock.protocol.claims import Claims
from dislock.protocol.statements import to_micros
from dislock.protocol.steps import Answer, Done, Execute, Failed, Steps, Unanswered, trouble

if TYPE_CHECKING:
    from dislock.protocol.records import Record, StartRun

#: Seconds for the record of a start; seconds for the record of an end and the deletion together.
START_SECONDS = 1.0
END_SECONDS = 2.0


class Recording(Claims):
    """The part of an acquisition that knows the journal; without one in the plan it does nothing."""

    #: When the work began; None: its end is not recorded.
    _began: float | None = None
    _record_failed = False

    def _record_start(self) -> Steps[bool]:
        """Records once that the work begins. True: it was asked to leave."""
        if not self._plan.journal or self._began is not None:
            return False
        self._began = now = self._clock()
        by = now + START_SECONDS
        if self.lease:
            # The journal must not delay a renewal.
            by = min(by, self.lease.try_until(now))
        return (yield from self._put(self._start_run(), by)).leave

    def _record_end(self, outcome: str, exit_code: int | None) -> Steps[None]:
        """Records how the work ended, and deletes the runs that are too old."""
        if not self._plan.journal or self._began is None:
            return
        from dislock.protocol.records import CleanRuns, EndRun

        began, self._began = self._began, None
        now = self._clock()
        took = round((now - began) * 1_000_000)
        by = now + END_SECONDS
        answer = yield from self._put(EndRun(*self._start_run(), took, exit_code, outcome), by)
        if isinstance(answer, Done) and self._plan.journal.keep_days:
            # A role without the privilege keeps all runs, which is no failure.
            statement = CleanRuns(self._plan.journal.key, self._plan.journal.keep_days)
            answer = yield Execute(statement, by, self._plan.journal.table)
            if not isinstance(answer, Done):
                self._say("cleaning failed", DEBUG, f"old runs were not deleted from the journal ({trouble(answer)})")

    def _start_run(self) -> StartRun:
        """What is known of the run when it starts."""
        from dislock.protocol.records import StartRun

        plan, journal = self._plan, self._plan.journal
        assert journal is not None
        tick = None if self.slot is None or self.slot.tick is None else to_micros(self.slot.tick)
        zone = self.zone if journal.schedule else None
        return StartRun(
            journal.key, journal.strategy, journal.schedule, zone, tick, plan.owner, self.token, journal.command
        )

    def _put(self, statement: Record, by: float) -> Steps[Answer]:
        """Sends a statement to the journal once."""
        assert self._plan.journal is not None
        if not self._connected and (failed := (yield from self._reach(by))):
            return self._complain(failed)
        answer = yield Execute(statement, by, self._plan.journal.table)
        if isinstance(answer, Unanswered) or (isinstance(answer, Failed) and answer.failure.broken):
            self._connected = False
        return answer if isinstance(answer, Done) else self._complain(answer)

    def _complain(self, answer: Failed | Unanswered) -> Answer:
        # One warning for each run is enough.
        level = INFO if self._record_failed else WARNING
        self._record_failed = True
        text = f"the run is not recorded in the journal ({trouble(answer)}); the job is not affected"
        self._say("record failed", level, text)
        return answer
