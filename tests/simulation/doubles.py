"""Rules that are broken on purpose, one at a time: the simulation must catch each of them.

The first group breaks the rule that an invariant rests on. The second puts back faults that the rules once had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from dislock.drivers.memory_table import Row, Rows
from dislock.errors import DatabaseUnavailableError, DislockError, LockNotAcquiredError, Loss, UnknownOutcomeError
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.conversation import Make
from dislock.protocol.lease import Lease
from dislock.protocol.plan import SlotPlan
from dislock.protocol.schedule import Slot
from dislock.protocol.statements import FreeAndSeal, GiveBackSlot, Held, MoveExpiry, to_micros
from dislock.protocol.steps import Answer, Connect, Done, Failed, Failure, Steps, Wait, proven
from tests.simulation.calls import Call
from tests.simulation.checks import WatchedTable
from tests.simulation.history import Rules
from tests.simulation.process import LIBRARY


class NoTolerance(Acquisition):
    """A host that is early takes the slot that is about to end."""

    def _claim_slot(self, plan: SlotPlan, by: float) -> Steps[bool]:
        return (yield from super()._claim_slot(plan._replace(tolerance=0.0), by))


class SlotAlwaysGivenBack(Acquisition):
    """A slot is freed although its command was started."""

    def release(self, *, started: bool = True, succeeded: bool = False) -> Steps[Loss | None]:
        return (yield from super().release(started=False))


class BeforeItsTick(WatchedTable):
    """A slot that is given back ends now, even when its tick still lies ahead."""

    def given_back(self, statement: GiveBackSlot, now: int) -> int:
        return now


class NoRoomForTheGrace(Lease):
    """The lease is given up at its TTL, although a command must still be ended."""

    @property
    def stop_time(self) -> float:
        return self._sent + self.terms.ttl


class GivenUpTooLate(Lease):
    """A program is told of a loss when another may long be at work."""

    @property
    def stop_time(self) -> float:
        return self._sent + 2 * self.terms.ttl


class CountedFromTheAnswer(Lease):
    """The time of a renewal counts from its answer instead of from before it was sent."""

    def learn(self, answer: Answer, now: float) -> Loss | None:
        if isinstance(answer, Done) and self._pending:
            self._pending = (now, self._pending[1])
        return super().learn(answer, now)


class NameAlone(WatchedTable):
    """A row that names the owner counts as one's own."""

    def is_own(self, value: str, expire: int, statement: MoveExpiry | FreeAndSeal, now: int) -> bool:
        return value == statement.owner


class ExpiryNotAsked(WatchedTable):
    """A row that has ended may still be renewed by its last holder."""

    def is_own(self, value: str, expire: int, statement: MoveExpiry | FreeAndSeal, now: int) -> bool:
        return value == statement.owner and expire in (*statement.known, statement.expires)


class FreedToTheEpoch(Lease):
    """A release forgets when the lease was acquired."""

    def release(self, now: float, by: float) -> MoveExpiry:
        return self._move(1, now, by)


class ReleaseBelieved(Acquisition):
    """A release does not look whether there was anything to release."""

    def _lose(self, loss: Loss, *, over: bool = False) -> None:
        if not over:
            super()._lose(loss)


class TakeoverTooLate(WatchedTable):
    """A row that has ended is left alone for a minute."""

    def is_free(self, row: Row, now: int) -> bool:
        return row.expire <= now - 60_000_000 or row.expire == 1


class SelfRefused(Acquisition):
    """A claim whose answer was lost counts as held by another when its repetition is refused."""

    def _refusal(self, key: str, slot: Slot | None, held: Held, *, doubtful: bool) -> DislockError | None:
        error = super()._refusal(key, slot, held, doubtful=doubtful)
        if isinstance(error, UnknownOutcomeError):
            return LockNotAcquiredError(str(error), key=key, holder=self._plan.owner)
        return error


class LeaveHeardInWaitsOnly(Acquisition):
    """A request to leave that comes during a renewal is not heard."""

    def keep(self) -> Steps[Loss | None]:
        lease = self.lease
        assert lease is not None
        while not (yield Wait(lease.next_renewal)).leave:
            now = self._clock()
            loss = lease.overdue(now)
            if not loss:
                answer = yield from self._ask(lease.renewal, lease.try_until(now))
                loss = lease.learn(answer, self._clock())
            if loss:
                self._lose(loss)
                return loss
        return None


class LeaveLostWhileConnecting(Acquisition):
    """A request to leave that comes with a new connection is not passed on."""

    def _reach(self, by: float) -> Steps[Failed | None]:
        failures: list[Failure] = []
        leave = False
        for index, name in enumerate(self._plan.targets):
            now = self._clock()
            answer = yield Connect(index, now + (by - now) / (len(self._plan.targets) - index))
            if isinstance(answer, Done):
                self._connected = True
                return None
            failures.append(answer.failure if isinstance(answer, Failed) else Failure(name))
            leave = answer.leave and index == len(self._plan.targets) - 1
        return Failed(Failure("; ".join(failure.text for failure in failures)), leave)


class EnteredTooLate(Acquisition):
    """A lease is entered however late its answer came."""

    def _claim_all(self) -> Steps[bool]:
        try:
            return (yield from super()._claim_all())
        except DatabaseUnavailableError:
            if self.lease is None:
                raise
            return True


class SelfRefusedAfterItsEnd(Acquisition):
    """A refusal in doubt is only unknown while the own row is alive."""

    def _refusal(self, key: str, slot: Slot | None, held: Held, *, doubtful: bool) -> DislockError | None:
        error = super()._refusal(key, slot, held, doubtful=doubtful)
        if isinstance(error, UnknownOutcomeError) and (held.ends is None or held.ends <= held.now):
            return LockNotAcquiredError(str(error), key=key, holder=self._plan.owner)
        return error


class RefusedByTheNextSlot(Acquisition):
    """A refusal in doubt is plain when another has taken the next slot meanwhile."""

    def _refusal(self, key: str, slot: Slot | None, held: Held, *, doubtful: bool) -> DislockError | None:
        error = super()._refusal(key, slot, held, doubtful=doubtful)
        if isinstance(error, UnknownOutcomeError) and f"names {self._plan.owner}" not in str(error):
            return LockNotAcquiredError(str(error), key=key, holder="another")
        return error


class GivenBackTwice(Acquisition):
    """A give-back is repeated although it may have been carried out."""

    def _insist(self, make: Make, by: float, *, repeat: bool = True, prove: bool = False) -> Steps[Answer]:
        return (yield from super()._insist(make, by, repeat=True, prove=prove))


class RenewedBeforeItsBeginning(Lease):
    """After the database's clock was set back a renewal may end the row before its acquisition."""

    def renewal(self, now: float, by: float) -> MoveExpiry:
        expires = self._answered_at + round((now - self._sent + self.terms.ttl) * 1_000_000)
        while expires in self._known:
            expires += 1
        self._pending = (now, expires)
        return self._move(expires, now, by)


class SlotReadBeforeTheClaim(Acquisition):
    """What the slot's row said before the claim of the lease was answered counts."""

    def _claim_open_tick(self, plan: SlotPlan, began: float) -> Steps[bool]:
        terms = self._plan.lease
        assert terms is not None
        slot = plan.slot or (yield from self._choose_slot(plan, began + self._plan.connect_timeout))
        if slot is None or not (yield from self._obtain_lease(terms, began, slot)):
            return False
        self.slot = slot
        return True


class SealedWithoutTheLease(WatchedTable):
    """A statement seals the slot although it did not move the lease's row."""

    def _unsealed(self, call: Call, statement: FreeAndSeal, now: int) -> Rows:
        self._seal(call, statement, now)
        return super()._unsealed(call, statement, now)


class LateSealBelieved(Acquisition):
    """A slot whose row names the own owner counts as sealed by this run, however late that is read."""

    def _seal(self, lease: Lease, slot: Slot) -> Steps[bool]:
        assert self._plan.slot is not None
        make = partial(lease.seal, slot_key=self._plan.slot.key, slot_expires=to_micros(slot.expires))
        by = self._clock() + 3 * lease.terms.ttl
        answer = yield from self._ask_again(make, by, lease.terms.pause, prove=True)
        if proven(answer):
            self.sealed = answer.rows[0].moved or answer.rows[0].slot_owner == self._plan.owner
        return bool(self.sealed)


class WaitsForTheEnd(Acquisition):
    """A waiter looks again when the row that it saw has ended, also when the lease is freed before that."""

    def _next_look(self, held: Held, now: float) -> float:
        return now + max(0.01, ((held.ends or 0) - held.now) / 1_000_000)


class LocalBelieved(Acquisition):
    """An answer counts although the server warned, or although its statement was cancelled before it came."""

    def _ask(self, make: Make, by: float) -> Steps[Answer]:
        answer = yield from super()._ask(make, by)
        return answer._replace(doubt="") if isinstance(answer, Done) else answer


@dataclass(frozen=True)
class Double:
    """A broken rule, and the invariant that catches it."""

    rules: Rules
    caught_by: str


def _protocol(rule: type[Acquisition], caught_by: str, **bias: Any) -> Double:
    return Double(Rules(protocol=rule, bias=bias), caught_by)


def _lease(rule: type[Lease], caught_by: str, **bias: Any) -> Double:
    return Double(Rules(lease=rule, bias=bias), caught_by)


def _table(rule: type[WatchedTable], caught_by: str, **bias: Any) -> Double:
    return Double(Rules(table=rule, bias=bias), caught_by)


SLOT, PAST, TOKEN = "one start per slot", "past its expiry", "fencing"
OTHER, REPORTED, TRUE, LEAVING = "another's row", "every loss is reported", "refusals are true", "leaving"
SEALED, ONCE = "sealed for good", "one success per tick"
SUCCESS: dict[str, Any] = {"strategy": "success", "wait": 10.0, "failing": 0.0, "hosts": 4}
SHORT: dict[str, Any] = {"strategy": "lease", "ttl": 1.0, "connect_timeout": 10.0, "rate": 0.4}

BROKEN_FOR_AN_INVARIANT: dict[str, Double] = {
    "no-tolerance": _protocol(NoTolerance, SLOT),
    "slot-always-given-back": _protocol(SlotAlwaysGivenBack, SLOT),
    "before-its-tick": _table(BeforeItsTick, SLOT, strategy="schedule", unstartable=0.4, hosts=4),
    "no-room-for-the-grace": _lease(NoRoomForTheGrace, PAST),
    "counted-from-the-answer": _lease(CountedFromTheAnswer, PAST),
    "expiry-not-asked": _table(ExpiryNotAsked, REPORTED),
    "given-up-too-late": _lease(GivenUpTooLate, REPORTED, strategy="lease", modes=(LIBRARY,), rate=0.2),
    "name-alone": _table(NameAlone, OTHER),
    "freed-to-the-epoch": _lease(FreedToTheEpoch, TOKEN),
    "release-believed": _protocol(ReleaseBelieved, REPORTED),
    "slot-read-before-the-claim": _protocol(SlotReadBeforeTheClaim, SEALED, **SUCCESS),
    "sealed-without-the-lease": _table(SealedWithoutTheLease, ONCE, **SUCCESS),
    "late-seal-believed": _protocol(LateSealBelieved, ONCE, **SUCCESS, namesakes=True, rate=0.4),
    "waits-for-the-end": _protocol(WaitsForTheEnd, "waiters are served", strategy="lease"),
    "local-believed": _protocol(LocalBelieved, "nothing local is relied on", kinds=["standby"], troubles=4),
    "takeover-too-late": _table(TakeoverTooLate, "somebody gets the lock"),
    "self-refused": _protocol(SelfRefused, TRUE),
}
FORMER_FAULTS: dict[str, Double] = {
    "leave-heard-in-waits-only": _protocol(LeaveHeardInWaitsOnly, LEAVING),
    "leave-lost-while-connecting": _protocol(LeaveLostWhileConnecting, LEAVING),
    "entered-too-late": _protocol(EnteredTooLate, PAST, **SHORT, execute_faults=["answered late"]),
    "self-refused-after-its-end": _protocol(
        SelfRefusedAfterItsEnd, TRUE, **SHORT, execute_faults=["cut after", "answered late"]
    ),
    "refused-by-the-next-slot": _protocol(
        RefusedByTheNextSlot,
        TRUE,
        strategy="schedule",
        rate=0.4,
        execute_faults=["cut after", "answered late"],
        gap=6.0,
    ),
    "given-back-twice": _protocol(
        GivenBackTwice, OTHER, namesakes=True, unstartable=0.4, rate=0.4, execute_faults=["cut after"], spread=0.02
    ),
    "renewed-before-its-beginning": _lease(
        RenewedBeforeItsBeginning,
        TOKEN,
        strategy="lease",
        ttl=1.0,
        troubles=4,
        kinds=["clock", "blow"],
        rate=0.2,
        ttls=4.0,
        length=2.0,
        execute_faults=["hang before", "cut before"],
    ),
}
DOUBLES = {**BROKEN_FOR_AN_INVARIANT, **FORMER_FAULTS}
