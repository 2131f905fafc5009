"""One simulated process: a wrapper around a command, or a program that uses the library, and what may befall it.

It follows ``dislock.holding``, ``dislock.process.runner`` and ``dislock.command``: acquire, renew beside it, end the
command on a loss (SIGTERM, the loss's grace, SIGKILL), stop renewing, free, and tell by the exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dislock.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DislockError,
    LockNotAcquiredError,
    LockWaitEndedError,
    Loss,
    LossReason,
    UnknownOutcomeError,
)
from dislock.events import WARNING, Event
from dislock.holding import STOP_SECONDS
from dislock.protocol.plan import Plan, Senses
from dislock.protocol.steps import Failure
from tests.simulation.driver import Leave, Simulated

if TYPE_CHECKING:
    from tests.simulation.history import History

#: Seconds that are longer than any history.
PATIENCE = 1e5
SUPERVISED, CONTINUES, LIBRARY = "supervised", "continues", "library"
ENDINGS = (
    (LockWaitEndedError, "waited in vain"),
    (LockNotAcquiredError, "refused"),
    (UnknownOutcomeError, "unknown"),
    (DatabaseUnavailableError, "unavailable"),
    (ConfigurationError, "configuration"),
)


class Host:
    """A machine: its clocks, and whether the network reaches it."""

    __slots__ = ("cut_until", "offset", "rate", "since")

    def __init__(self, offset: float, drift: float, since: float) -> None:
        #: The wall clock's offset from the database's, in seconds.
        self.offset = offset
        #: Seconds of its steady clock in a true second, and where that clock began.
        self.rate = 1.0 + drift
        self.since = since
        self.cut_until = -1.0


class Process:
    """Implements ``tests.simulation.driver.World`` for its own driver."""

    def __init__(self, history: History, host: Host, plan: Plan, mode: str, tick: int | None) -> None:
        self.history = history
        self.host = host
        self.mode = mode
        self.tick = tick
        self.owner = plan.owner
        self.protocol = history.rules.protocol(plan, Senses(self.clock, self.wall, history.rng.random, self.say))
        self.driver = self.make_driver()
        self.acquiring, self.keeping = Leave(), Leave()
        self.dead = self.over = False
        self.paused = self.was_paused = False
        self.resumed = -1.0
        self.deferred: list[Callable[[], None]] = []
        self.strike, self.blow = history.strike()
        self.signalled: float | None = None
        self.loss: Loss | None = None
        self.kept = plan.lease is None
        self.leaving: float | None = None
        self.started_work = self.running = False
        self.code = ""
        #: Whether it would wait for any time.
        self.patient = plan.wait >= PATIENCE
        #: Since when it waits for a lease that another holds.
        self.waiting_since: float | None = None
        #: By when its lease must be free, by its clock.
        self.stop_time = 0.0
        self.run_serial = 0
        #: What the database gave to this process, known to the simulation alone.
        self.grants: list[Any] = []
        self.refused_by_own: dict[str, int | None] = {}
        self.lease: Any = None
        self.own_at_end = True
        self.unverified = False
        history.processes.append(self)
        history.trace("%s starts, %s", self, mode)
        self.driver.run(self.protocol.acquire(), self.acquiring, self.acquired)

    def __str__(self) -> str:
        return f"process {self.history.processes.index(self)} ({self.owner})"

    def make_driver(self) -> Any:
        return Simulated(self)

    # The world of its driver

    def clock(self) -> float:
        return self.host.since + self.history.now * self.host.rate

    def wall(self) -> float:
        return self.history.true_wall() + self.host.offset

    def say(self, event: Event) -> None:
        if event.level >= WARNING:
            self.history.stats.warnings += 1
            self.unverified = self.unverified or event.name == "release failed"
        if event.name == "waiting":
            self.waiting_since = self.history.now
        self.history.trace("%s says: %s", self, event.message)

    def call_at(self, moment: float, callback: Callable[[], None]) -> None:
        history = self.history
        due = (moment - self.host.since) / self.host.rate
        # Nobody wakes at the very moment.
        history.at(max(due, history.now) + 0.004 * history.rng.random(), self.deliver, callback)

    def connect(self, target: int, answer: Any) -> None:
        if not self.struck():
            self.history.server.connect(self, target, answer)

    def execute(self, link: Any, statement: Any, answer: Any) -> None:
        if not self.struck():
            self.history.trace("%s sends %s", self, statement)
            self.history.server.execute(self, link, statement, answer)

    def cancel(self, link: Any) -> None:
        self.history.server.cancel(self, link)

    def abandon(self, link: Any) -> None:
        link.alive = False

    def deliver(self, callback: Callable[[], None]) -> None:
        if self.over:
            return
        if self.paused:
            self.deferred.append(callback)
        else:
            callback()

    def answered(self, call: Any, outcome: Any) -> None:
        if call.link.alive:
            self.history.trace("%s hears %s", self, outcome)
            call.done(outcome if isinstance(outcome, Failure) else (outcome, call.warned))

    # What may befall it

    def struck(self) -> bool:
        """Counts a step; whether the process died before it was carried out."""
        self.history.steps += 1
        self.strike -= 1
        if self.strike == 0 and self.history.now < self.history.quiet:
            self.befall(self.blow)
        return self.dead

    def befall(self, blow: str) -> None:
        history = self.history
        if self.dead or self.over:
            return
        if blow == "crash":
            self.crash()
        elif blow == "crash after":
            # What it was about to send leaves, and nobody is there for the answer.
            history.at(history.now, self.crash)
        elif blow == "signal":
            history.stats.fault("signal")
            # Not in the midst of the step.
            history.at(history.now, self.deliver, self.signal)
        else:
            self.pause((0.05 + 2 * history.rng.random()) * history.scale, whole=blow == "suspend")

    def crash(self) -> None:
        if self.dead or self.over:
            return
        self.history.stats.fault("crash")
        self.history.trace("%s is killed", self)
        self.dead = self.over = True
        if self.running:
            self.command_over(None, 137)

    def pause(self, seconds: float, *, whole: bool) -> None:
        if self.paused or self.dead:
            return
        self.history.stats.fault("suspend" if whole else "pause")
        self.history.trace("%s is stopped for %.3f s", self, seconds)
        self.paused = self.was_paused = True
        self.history.calm_from(self.history.now + seconds)
        if whole and self.running:
            # The command stands still as well, and goes on for as long as it still had.
            self.run_serial += 1
            serial = self.run_serial
            self.history.after(seconds + self.history.duration(), self.command_over, serial)
        self.history.after(seconds, self.resume)

    def resume(self) -> None:
        self.paused = False
        self.resumed = self.history.now
        self.history.trace("%s goes on", self)
        deferred, self.deferred = self.deferred, []
        if self.history.rng.random() < 0.5:
            self.history.rng.shuffle(deferred)
        for callback in deferred:
            self.deliver(callback)

    def signal(self) -> None:
        """SIGTERM to the wrapper."""
        if self.over or self.signalled is not None or self.mode == LIBRARY:
            return
        self.history.trace("%s gets SIGTERM", self)
        self.signalled = self.history.now
        if self.running:
            # Passed on; what the command makes of it is its own affair, and no kill timer starts.
            if self.history.rng.random() < 0.7:
                self.history.after(0.05, self.command_over, None, 143)
        elif not self.started_work:
            self.driver.request(self.acquiring)

    # Its own course

    def acquired(self, held: bool | None, error: DislockError | None) -> None:
        history = self.history
        if self.waiting_since is not None:
            history.checks.served(self, held=bool(held))
            self.waiting_since = None
        if self.signalled is not None and not self.was_paused and error is None:
            history.checks.leaves_in_time(self, history.now - self.signalled, "acquiring", held)
        if error is not None:
            if isinstance(error, LockNotAcquiredError):
                history.checks.refusal(self, error)
            self.finish(next(name for kind, name in ENDINGS if isinstance(error, kind)))
            return
        if not held:
            self.finish("signalled")
            return
        if self.protocol.lease:
            self.lease = next((g for g in reversed(self.grants) if g.lease and g.token == self.protocol.token), None)
            self.driver.run(self.protocol.keep(), self.keeping, self.keeper_over)
        history.at(history.now + 0.01 * history.rng.random(), self.deliver, self.start_command)

    def start_command(self) -> None:
        history = self.history
        if self.signalled is not None:
            self.leave(started=False, code="signalled")
        elif self.loss and self.mode == SUPERVISED:
            self.leave(started=False, code="lost before the start")
        elif history.rng.random() < history.unstartable:
            history.stats.fault("command cannot be started")
            self.leave(started=False, code="not started")
        else:
            self.started_work = self.running = True
            self.run_serial += 1
            history.trace("%s starts its command", self)
            history.checks.start(self)
            if self.protocol.lease is None:
                # The command takes the wrapper's place.
                self.running = False
                self.finish("run")
            else:
                history.after(history.duration(), self.command_over, self.run_serial)

    def command_over(self, serial: int | None = None, code: int = 0) -> None:
        """The command is gone. ``serial``: of a natural end, which a suspension of the machine puts off."""
        if not self.running or serial not in (None, self.run_serial):
            return
        self.running = False
        self.history.trace("%s: its command ends, %s", self, code)
        self.history.checks.end(self)
        if not self.dead:
            if code == 0 and self.history.rng.random() < self.history.failing:
                code = 1
            self.deliver(partial(self.leave, started=True, code="failed" if code else "run"))

    def keeper_over(self, loss: Loss | None, error: DislockError | None) -> None:
        assert error is None
        self.kept = True
        if loss:
            self.report(loss)
        if self.leaving is not None and not self.over:
            if not loss and not self.was_paused:
                self.history.checks.leaves_in_time(self, self.clock() - self.leaving, "renewing", False)
            self.free()

    def report(self, loss: Loss) -> None:
        if self.loss:
            return
        self.loss = loss
        self.history.stats.losses[loss.reason.value] += 1
        self.history.trace("%s lost its lease: %s", self, loss)
        if self.running and self.mode == SUPERVISED:
            self.stop_command(loss.grace)

    def stop_command(self, grace: float) -> None:
        history = self.history
        kind = history.rng.random()
        if kind < 0.4:
            history.after(0.01, self.command_over, None, 143)
        elif kind < 0.6:
            history.after(grace * history.rng.random() * 1.5, self.command_over, None, 143)
        self.call_at(self.clock() + grace, self.kill_command)

    def kill_command(self) -> None:
        self.history.after(0.01 * self.history.rng.random(), self.command_over, None, 137)

    def leave(self, *, started: bool, code: str) -> None:
        self.leaving = self.clock()
        self.code, self.started = code, started
        if self.kept:
            self.free()
        else:
            self.call_at(self.leaving + STOP_SECONDS, self.keeper_stuck)
            self.driver.request(self.keeping)

    def keeper_stuck(self) -> None:
        if not self.kept and not self.over:
            if not self.was_paused:
                self.history.checks.leaves_in_time(self, STOP_SECONDS, "renewing", False)
            self.report(Loss(LossReason.UNCONFIRMED, "its renewal could not be stopped"))
            self.finish(self.code)

    def free(self) -> None:
        lease = self.protocol.lease
        self.stop_time = lease.stop_time if lease and self.history.by_success and self.code == "run" else 0.0
        steps = self.protocol.release(started=self.started, succeeded=self.code == "run")
        self.driver.run(steps, Leave(), self.freed)

    def freed(self, loss: Loss | None, error: DislockError | None) -> None:
        assert error is None
        assert self.leaving is not None
        if loss:
            self.report(loss)
        if not self.was_paused:
            self.history.checks.left_in_time(self, self.clock() - max(self.leaving, self.stop_time))
        if self.protocol.sealed:
            self.history.checks.success(self)
        self.finish(self.code)

    def finish(self, code: str) -> None:
        self.over = True
        if self.started_work and self.lease is not None:
            self.history.checks.exit(self)
        if code in ("run", "failed") and self.loss:
            code = "lost"
        elif code == "run" and self.protocol.sealed is False:
            code = "not sealed"
        self.code = code
        self.history.stats.endings[code] += 1
        self.history.trace("%s ends: %s", self, code)
        self.history.ended(self)
