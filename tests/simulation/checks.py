"""What must be true of every history, checked at each change that could make it false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dislock.drivers.memory_table import Row, Table
from dislock.errors import LockNotAcquiredError
from dislock.protocol.acquisition import LEAVE_SECONDS
from dislock.protocol.leasing import LOOK_PAUSE
from dislock.protocol.steps import LINGER
from tests.simulation.calls import Call
from tests.simulation.process import SUPERVISED, Process

if TYPE_CHECKING:
    from tests.simulation.history import History

#: Seconds that a wrapper which was stopped may need, once it goes on, to end a command that it should have ended.
AFTER_A_PAUSE = 0.05
#: Seconds by which timers of a process may be late, all in all.
LATENESS = 0.1
SECOND = 1_000_000


class Violation(AssertionError):
    """A history in which something was not as promised."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Grant:
    """One acquisition, as the database made it; its holder may never hear of it."""

    __slots__ = ("disturbed", "ended", "freed_at", "key", "lease", "process", "returned", "token")

    def __init__(self, process: Process, key: str, token: int, *, lease: bool) -> None:
        self.process = process
        self.key = key
        self.token = token
        self.lease = lease
        #: Others changed or removed its row, or the database's clock was set.
        self.disturbed = False
        #: When its row had ended, if another took it.
        self.ended = 0
        #: When its holder freed it.
        self.freed_at = 0.0
        #: Its holder gave it back.
        self.returned = False


class WatchedTable(Table):
    """The model of the table, which tells the checks what is about to change."""

    checks: Checks

    def took(self, call: Call, row: Row, now: int) -> None:
        self.checks.took(call, row, now)

    def refused(self, call: Call, row: Row, now: int) -> None:
        if row.holder is not None and row.holder.process is call.process:
            call.process.refused_by_own[call.statement.key] = getattr(call.statement, "expires", None)

    def moved(self, call: Call, row: Row, now: int) -> None:
        self.checks.moved(call, row)

    def seals(self, call: Call, row: Row, now: int) -> None:
        self.checks.seals(call, row, now)


class Checks:
    """The invariants."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.last_token = 0
        self.slots: dict[int, Process] = {}
        self.ticks: dict[int, Process] = {}
        #: The ticks of slots that are consumed by success, by the slots' ends: who sealed them, and who says so.
        self.sealed: dict[int, Process] = {}
        self.successes: dict[int, Process] = {}
        self.lease_held_at = -1.0
        #: How long a request that changed a row was under way, at most, in seconds.
        self.slowest = 0.0

    def fail(self, invariant: str, text: str) -> None:
        raise Violation(invariant, text)

    # In the database

    def took(self, call: Call, row: Row, now: int) -> None:
        history = self.history
        process, key = call.process, call.statement.key
        lease = key == history.lease_key
        self.slowest = max(self.slowest, history.now - call.sent)
        if row.holder is not None:
            row.holder.ended = row.expire
            self.overrun(row.holder, row, now, "when its row was taken over")
        if lease and self.history.steady:
            self.nobody_waited(row, now)
        if lease:
            if now <= self.last_token and not (history.stepped_back and history.forced):
                self.fail("fencing", f"{process} was given {now} after {self.last_token}")
            self.last_token = max(self.last_token, now)
            self.lease_held_at = history.now
        row.holder = Grant(process, key, now, lease=lease)
        # The end of a row that is inserted counts from the start of a statement that may have waited since.
        row.holder.disturbed = history.stepped_at >= call.sent
        process.grants.append(row.holder)
        history.stats.acquisitions += 1
        history.trace("the database gives %s to %s at %d", key, process, now)

    def moved(self, call: Call, row: Row) -> None:
        grant, process = row.holder, call.process
        self.slowest = max(self.slowest, self.history.now - call.sent)
        own = grant is not None and grant.process is process
        if own and grant.lease and process.protocol.token is not None:
            own = grant.token == process.protocol.token
        if call.statement.key == self.history.slot_key:
            # A slot's end is the same for everyone: behind the back of its holder, its row can pass to a namesake. And
            # a namesake who took the coming tick and gave it back leaves the row as it was before.
            own = own or self.history.slot_forced or (grant is not None and grant.returned)
            if grant is not None:
                grant.returned = True
        if grant is not None and grant.lease:
            grant.freed_at = self.history.now
        if not own:
            self.fail("another's row", f"{process} changed the row of {grant and grant.process}: {call.statement}")

    def seals(self, call: Call, row: Row, now: int) -> None:
        process, end = call.process, call.statement.slot_expires
        lease = self.history.table.rows.get(call.statement.key)
        grant = lease.holder if lease is not None else None
        if grant is None or grant.process is not process or grant.token != process.protocol.token:
            self.fail("one success per tick", f"{process} sealed the slot to {end} without the lease")
        self.sealed[end] = process
        row.holder = Grant(process, call.statement.slot_key, now, lease=False)
        self.history.stats.seals += 1
        self.history.trace("the database seals the slot to %d for %s", end, process)

    def undone(self, key: str, grant: Grant) -> None:
        """A failover has undone what the database gave."""
        process = grant.process
        if self.history.by_success and key == self.history.slot_key:
            relied = process.protocol.sealed is True
            if not relied:
                self.sealed = {end: sealer for end, sealer in self.sealed.items() if sealer is not process}
        elif grant.lease:
            relied = process.lease is grant and not process.over
        else:
            relied = process.started_work
        if relied:
            self.fail("nothing local is relied on", f"{process} relies on {key}, and a failover has undone it")

    def nobody_waited(self, row: Row, now: int) -> None:
        """While the server answers, some waiter gets the lock within one look of its becoming free."""
        history = self.history
        # Others may still be in a step that a fault has spoiled.
        waiters = [each.waiting_since for each in history.processes if each.patient and each.waiting_since is not None]
        if not waiters:
            return
        free_since = history.now - (now - row.expire) / SECOND
        # A look, an answer, a claim, and timers that are a little late.
        limit = LOOK_PAUSE + LATENESS + 8 * history.latency
        # Whoever just freed it wrote an earlier moment.
        free_since = max(free_since, min(waiters), row.holder.freed_at if row.holder else 0.0)
        if history.now - free_since > limit:
            self.fail(
                "waiters are served", f"the lease was free for {history.now - free_since:.3f} s although one waited"
            )

    def overrun(self, grant: Grant, row: Row, now: int, when: str) -> None:
        """Whether work of this grant goes on although its row has ended: a command at all, others untold."""
        process = grant.process
        if not process.running or grant is not process.lease:
            return
        if process.dead or process.paused or grant.disturbed or row.holder is not grant:
            return
        over = (now - row.expire) / SECOND
        if process.resumed >= 0.0:
            over = min(over, self.history.now - process.resumed - AFTER_A_PAUSE)
        if process.mode == SUPERVISED:
            if over > 0:
                self.fail("past its expiry", f"{process} ran {over:.6f} s past the end of its row, {when}")
        elif process.loss is None and over > LATENESS:
            self.fail("every loss is reported", f"{process} was not told {over:.6f} s after the end of its row, {when}")

    # At a process

    def start(self, process: Process) -> None:
        history = self.history
        history.stats.runs += 1
        slot = process.protocol.slot
        end = history.micros(slot.expires) if slot is not None else 0
        if history.by_success:
            if end in self.sealed and not history.slot_forced and not process.was_paused:
                self.fail("sealed for good", f"{process} started in the slot to {end}, sealed by {self.sealed[end]}")
        elif slot is not None and not history.slot_forced:
            if end in self.slots:
                self.fail("one start per slot", f"{process} and {self.slots[end]} both started in the slot to {end}")
            self.slots[end] = process
            self._tick(process, end)
        self._begins_in_time(process)

    def _tick(self, process: Process, end: int) -> None:
        """Whoever starts when cron says so starts in that tick's slot."""
        history = self.history
        tick = process.tick
        if tick is None or history.stepped or not history.clocks_agree or process.was_paused or history.given_slots:
            return
        if history.database_now() >= tick + history.gap - round(history.tolerance * SECOND):
            return
        if tick in self.ticks:
            self.fail("one start per slot", f"{process} and {self.ticks[tick]} both started for the tick {tick}")
        self.ticks[tick] = process
        if end != tick + history.gap:
            self.fail("one start per slot", f"{process}, started for the tick {tick}, took the slot to {end}")

    def _begins_in_time(self, process: Process) -> None:
        """Nobody begins work on a lease that is over."""
        grant = process.lease
        if grant is None or grant.disturbed or process.was_paused:
            return
        row = self.history.table.rows[grant.key]
        late = (self.history.database_now() - (row.expire if row.holder is grant else grant.ended)) / SECOND
        # A program may be a little late: only a command has room left before its row ends.
        if late > (0 if process.mode == SUPERVISED else LATENESS):
            self.fail("past its expiry", f"{process} began its work {late:.6f} s after its lease had ended")

    def success(self, process: Process) -> None:
        """A process says that its run succeeded and is sealed."""
        history, slot = self.history, process.protocol.slot
        assert slot is not None
        end = history.micros(slot.expires)
        if end in self.successes and not history.slot_forced:
            others = self.successes[end]
            self.fail("one success per tick", f"{process} and {others} both say that they sealed the slot to {end}")
        self.successes[end] = process

    def served(self, process: Process, *, held: bool) -> None:
        if process.patient and not held:
            self.fail("waiters are served", f"{process} waited in vain long after all faults")

    def still_own(self, process: Process, when: str) -> bool:
        grant = process.lease
        if grant is None:
            return True
        row = self.history.table.rows.get(grant.key)
        if row is None or row.holder is not grant:
            # What it did until then was checked when the row was taken over.
            return False
        now = self.history.database_now()
        self.overrun(grant, row, now, when)
        return row.expire > now

    def end(self, process: Process) -> None:
        """The command ended; ``running`` is already false, and counts as true for this moment."""
        process.running = True
        process.own_at_end = self.still_own(process, "at its end")
        process.running = False
        if process.own_at_end and process.lease is not None:
            self.lease_held_at = self.history.now

    def exit(self, process: Process) -> None:
        grant, row = process.lease, self.history.table.rows.get(process.lease.key)
        # A row that had ended by a clock which was set back since, and that nobody took meanwhile, is its own again.
        revived = self.history.stepped_back and row is not None and row.holder is grant
        excused = grant.disturbed and (process.unverified or revived)
        if process.loss is None and not process.own_at_end and not excused:
            self.fail(
                "every loss is reported", f"{process} ended well, but at its command's end its row was not its own"
            )
        if process.loss is not None and process.own_at_end:
            self.history.stats.cautious += 1

    def refusal(self, process: Process, error: LockNotAcquiredError) -> None:
        """Whoever was refused by the row that its own lost claim made must not say that another has the lock."""
        if error.key not in process.refused_by_own:
            return
        wanted = process.refused_by_own[error.key]
        same = wanted is None or (error.expires_at is not None and self.history.micros(error.expires_at) == wanted)
        if error.holder in (None, process.owner) or not same:
            self.fail("refusals are true", f"{process} was refused by its own row, and says another holds it")

    def leaves_in_time(self, process: Process, seconds: float, where: str, held: Any) -> None:
        limit = LINGER + LATENESS + (LEAVE_SECONDS if where == "acquiring" else 0.0)
        if seconds > limit:
            self.fail("leaving", f"{process} was told to leave while {where}, and took {seconds:.3f} s")
        if held:
            self.fail("leaving", f"{process} was told to leave while {where}, and holds its locks")

    def left_in_time(self, process: Process, seconds: float) -> None:
        if seconds > LINGER + LEAVE_SECONDS + LATENESS:
            self.fail("leaving", f"{process} took {seconds:.3f} s to leave")

    def somebody_holds(self, since: float) -> None:
        """Within one TTL after the last fault (and the delay of a request) somebody takes the lease, or holds it."""
        history = self.history
        row = history.table.rows.get(history.lease_key)
        holder = row.holder.process if row is not None and row.holder is not None else None
        if self.lease_held_at >= since or (holder is not None and holder.running and not holder.dead):
            return
        self.fail("somebody gets the lock", f"nobody did in {history.now - since:.3f} s after the last fault")
