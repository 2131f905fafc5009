"""What every claim shares: asking for a row, asking who has it, and what an answer without a lock means."""

from __future__ import annotations

from dislock.errors import ConfigurationError, DatabaseUnavailableError, DislockError
from dislock.events import WARNING, Event
from dislock.protocol.conversation import Conversation, Make
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.refusals import lease_refused, slot_refused, unknown
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import MOMENT_TYPES, Claimed, Held, Inspect, to_micros
from dislock.protocol.steps import Answer, Done, Failed, Failure, Steps, proven, trouble

#: How often a claim is tried that is refused although nobody holds the lock: a holder may just have left.
VACANT_TRIES = 3


class Claiming(Conversation):
    """The part of an acquisition that is the same for a slot and for a lease."""

    def __init__(self, plan: Plan, senses: Senses) -> None:
        super().__init__(plan.targets, senses, plan.connect_timeout)
        self._plan = plan
        self._report = senses.report
        self.token: int | None = None
        self.zone: str | None = None
        """The zone in which the schedule was read; None without a schedule."""
        #: Whether the answer to a claim was lost: the claim may have taken the row, or may still do so.
        self._lost_claim = False

    def _say(self, name: str, level: int, message: str, **fields: object) -> None:
        self._report(Event(name, level, message, {"owner": self._plan.owner, **fields}))

    def _claim(self, make: Make, by: float) -> Steps[Answer]:
        answer = yield from self._insist(make, by)
        taken = isinstance(answer, Done) and bool(answer.rows)
        self._lost_claim = (self._lost_claim or self._doubtful) and not taken
        return answer

    def _check_claim(self, key: str, answer: Done) -> None:
        """Raises if a claim took its row but is not reliable. The row is then given back, as after any error."""
        claimed: Claimed = answer.rows[0]
        if claimed.kind not in MOMENT_TYPES:
            raise ConfigurationError(
                f"the lock table's column expire_at is of type {claimed.kind}: the lock table needs "
                "expire_at timestamptz NOT NULL"
            )
        if answer.doubt:
            raise DatabaseUnavailableError(f"{key} was taken, but {answer.doubt}; it is given back and nothing is run")

    def _look(self, key: str, by: float) -> Steps[tuple[Held, bool] | None]:
        """Who holds the lock, and whether to leave. None: it was asked to leave before the answer was known."""
        plan = self._plan
        slot_key = plan.slot.key if plan.slot and plan.slot.by_success else ""
        answer = yield from self._insist(lambda *_: Inspect(key, slot_key), by)
        if proven(answer):
            return answer.rows[0], answer.leave
        self._give_up(answer)
        return None

    def _refusal(self, key: str, slot: Slot | None, held: Held, *, doubtful: bool) -> DislockError | None:
        """Why a claim got no row; None: nobody holds the lock."""
        owner = self._plan.owner
        if slot:
            return slot_refused(key, slot, held, owner=owner, doubtful=doubtful)
        return lease_refused(key, held, owner=owner, doubtful=doubtful)

    def _is_proven(self, key: str, refused: Answer) -> bool:
        """Whether a claim that took no row was refused. False: it was asked to leave. Raises if that is unknown."""
        if refused.leave or not isinstance(refused, Done):
            # Before leaving, only a claim whose answer was lost still matters.
            return self._give_up(
                Failed(Failure("asked to leave"), leave=True) if isinstance(refused, Done) else refused
            )
        if refused.doubt:
            raise DatabaseUnavailableError(f"{key} was refused, but {refused.doubt}")
        return True

    def _give_up(self, answer: Answer) -> bool:
        """Ends a claim without a usable answer: returns False if it was asked to leave, else raises."""
        text = trouble(answer)
        if answer.leave:
            if self._lost_claim:
                self._say("unknown outcome", WARNING, str(unknown(text)))
            return False
        if isinstance(answer, Failed) and answer.failure.permanent:
            raise ConfigurationError(text)
        if self._lost_claim:
            raise unknown(text)
        raise DatabaseUnavailableError(f"no lock within {max(self._plan.connect_timeout, self._plan.wait):g} s: {text}")


def micros_of(slot: Slot) -> tuple[int | None, int]:
    """The slot's tick and end in microseconds since 1970."""
    return None if slot.tick is None else to_micros(slot.tick), to_micros(slot.expires)
