"""One checked request for locks: a context and strategies, turned into what the protocol needs."""

from __future__ import annotations

import os
import random
from collections.abc import Coroutine, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dislock.context import NEEDS_BOTH, LeaseLossPolicy, LockContext, Strategy, advisory_parts, default_interval
from dislock.drivers import surroundings
from dislock.errors import ConfigurationError, DislockError
from dislock.events import report
from dislock.greenlets import refuse_greenlets
from dislock.protocol.acquisition import Acquisition
from dislock.protocol.lease import Terms
from dislock.protocol.plan import AdvisoryPlan, JournalPlan, Plan, Senses, SlotPlan
from dislock.protocol.schedule import Schedule, Slot

if TYPE_CHECKING:
    from dislock.drivers.targets import Database

#: All strategies, in the order in which locks are taken; they are freed in the opposite one.
STRATEGIES: tuple[Strategy, ...] = ("schedule", "lease")
#: The strategy that is never combined: one advisory lock, no table.
ADVISORY: Strategy = "advisory"
#: Bytes that PostgreSQL keeps of an application_name (NAMEDATALEN - 1).
NAME_LENGTH = 63


def normalize_strategies(strategies: Iterable[Strategy]) -> tuple[Strategy, ...]:
    """The strategies in the order in which locks are taken, each once.

    Raises ``ConfigurationError`` for no strategy, an unknown one, or a bare string, so that nothing runs unlocked.
    """
    if isinstance(strategies, (str, bytes)) or not isinstance(strategies, Iterable):
        raise ConfigurationError('strategies must be a sequence such as ("schedule", "lease"), not a bare string')
    wanted = [name.strip().lower() if isinstance(name, str) else name for name in strategies]
    unknown = [name for name in wanted if name not in (*STRATEGIES, ADVISORY)]
    if unknown or not wanted:
        problem = f"unknown strategy {unknown[0]!r}" if unknown else "no strategy given"
        raise ConfigurationError(f"{problem}: choose from {', '.join((*STRATEGIES, ADVISORY))}")
    if ADVISORY in wanted:
        if set(wanted) != {ADVISORY}:
            raise ConfigurationError("the strategy advisory cannot be combined with another one")
        return (ADVISORY,)
    return tuple(name for name in STRATEGIES if name in wanted)


class Request:
    """One acquisition, checked and not begun yet. No connection is opened here."""

    def __init__(
        self,
        context: LockContext,
        strategies: Iterable[Strategy],
        *,
        supervised: bool = False,
        jitter: bool = False,
        recorded: str | None = None,
    ) -> None:
        """``supervised``: a command runs under the locks; on a loss it must be stopped before the row expires.

        ``recorded``: what runs under the locks, for the journal; None: nothing is recorded.
        """
        refuse_greenlets()
        self.context = context
        self.strategies = normalize_strategies(strategies)
        self.continues = context.lease_loss_policy is LeaseLossPolicy.CONTINUE
        self._supervised = supervised
        self._jitter = jitter
        self._recorded = recorded
        self._process: int | None = None
        self._surroundings = surroundings.current()
        self._schedule: Schedule | None = None
        if "schedule" in self.strategies and context.next_run_time is None:
            if context.schedule is None:
                raise ConfigurationError("the strategy schedule needs next_run_time or schedule")
            self._schedule = Schedule(context.schedule, context.time_zone)
            if context.time_zone is None and (variable := _zone_of_the_host()):
                raise ConfigurationError(
                    f"{variable} in the environment sets the time zone of the database session on this host alone, and "
                    "the schedule would be read in it: set time_zone"
                )
        if context.slot_consumed_by == "success" and self.strategies != STRATEGIES:
            raise ConfigurationError(f"slot_consumed_by success {NEEDS_BOTH}")
        self._terms = self._make_terms() if "lease" in self.strategies else None
        self._advisory = self._make_advisory() if ADVISORY in self.strategies else None
        # psycopg is loaded only for settings that are right so far.
        from dislock.drivers.targets import Database

        self.database: Database = Database(context.url, f"dislock {context.lock_key}"[:NAME_LENGTH])

    @property
    def shares(self) -> bool:
        """Whether the locks share their connection with other locks of this process.

        The locks of a command have their own connection. An advisory lock is the transaction of its connection. And a
        slow journal must not delay the locks of others.
        """
        records = self._recorded is not None and bool(self.context.journal_parts)
        return not (self._supervised or self._advisory or records)

    def _make_terms(self) -> Terms:
        context = self.context
        if context.run_ttl_seconds is None:
            raise ConfigurationError("the strategy lease needs run_ttl_seconds")
        interval = context.lease_interval_seconds
        return Terms(
            key=context.lease_key,
            owner=context.owner,
            ttl=context.run_ttl_seconds,
            interval=default_interval(context.run_ttl_seconds) if interval is None else interval,
            grace=context.kill_grace_seconds if self._supervised and not self.continues else None,
        )

    def _make_advisory(self) -> AdvisoryPlan:
        from pg_advisory_lock.keys import advisory_key

        context = self.context
        parts = advisory_parts(context.lock_key)
        stops = self._supervised and not self.continues
        return AdvisoryPlan(advisory_key(parts), context.lock_key, context.kill_grace_seconds if stops else 0.0)

    def make_threads(self) -> Any:
        """A driver for synchronous code."""
        return self._surroundings.threads(self.database, self.context, shares=self.shares)

    def make_tasks(self) -> Any:
        """A driver for the running event loop."""
        return self._surroundings.tasks(self.database, self.context, shares=self.shares)

    def begin(self, started: float | None = None) -> Acquisition:
        """Makes the acquisition; can be called once. ``started``: when the process started, by ``drivers.clock``."""
        if self._process is not None:
            raise DislockError("this lock object was entered before: make a new one for each use")
        if surroundings.current() is not self._surroundings:
            # A test that means the in-memory table must not lock a real one, and vice versa.
            raise DislockError("this lock object was made on the other side of dislock.testing.in_memory()")
        self._process = os.getpid()
        context = self.context
        slot = None
        if "schedule" in self.strategies:
            moment = context.next_run_time
            given = None if moment is None else Slot(None, moment.astimezone(timezone.utc), None)
            by_success = context.slot_consumed_by == "success"
            slot = SlotPlan(context.schedule_key, given, self._schedule, context.slot_tolerance_seconds, by_success)
        plan = Plan(
            targets=tuple(target.name for target in self.database.targets),
            owner=context.owner,
            connect_timeout=context.connect_timeout_seconds,
            started=self._surroundings.clock() if started is None else started,
            delay=self._delay(),
            slot=slot,
            lease=self._terms,
            advisory=self._advisory,
            wait=context.wait_seconds,
            supervised=self._supervised,
            continues=self.continues,
            journal=self._journal(),
        )
        senses = Senses(self._surroundings.clock, self._surroundings.wall, random.random, report)
        if self._advisory is None:
            return Acquisition(plan, senses)
        from dislock.protocol.advisory import AdvisoryAcquisition

        return AdvisoryAcquisition(plan, senses)

    def _journal(self) -> JournalPlan | None:
        context = self.context
        if context.journal_parts is None or self._recorded is None:
            return None
        return JournalPlan(
            table=tuple(context.journal_parts),
            keep_days=context.journal_keep_days,
            key=context.lock_key,
            strategy=",".join(self.strategies),
            schedule=self._schedule.expression if self._schedule else None,
            command=self._recorded,
        )

    def _delay(self) -> float:
        longest = self.context.jitter_max_seconds if self._jitter else 0.0
        if longest and self._schedule:
            # With a longer delay the start would fall into the next tick.
            longest = min(
                longest,
                self._schedule.jitter_cap(
                    datetime.fromtimestamp(self._surroundings.wall(), timezone.utc),
                    session_zone=None,
                    tolerance=self.context.slot_tolerance_seconds,
                ),
            )
        return random.uniform(0.0, longest)  # noqa: S311 - spreads load, guards nothing

    @property
    def forked(self) -> bool:
        """Whether this is a copy, in a child process, of a lock that the parent holds."""
        return os.getpid() != self._process


def _zone_of_the_host() -> str | None:
    """The variable of libpq that sets the time zone of sessions of this host (the command line removes them)."""
    if os.environ.get("PGTZ"):
        return "PGTZ"
    return "PGOPTIONS" if "timezone" in os.environ.get("PGOPTIONS", "").lower() else None


def name_of(function: object) -> str:
    """A function's name for the journal."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def refuse_deferred(function: object, alternative: str, result: object = None) -> None:
    """Raises ``ConfigurationError`` for a function whose body runs after its call: the locks would be free by then.

    Whether an ordinary function wraps a coroutine function shows only in its ``result``.
    """
    import inspect

    deferred = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if isinstance(result, Coroutine):
        result.close()
    elif not any(test(function) for test in deferred):
        return
    raise ConfigurationError(
        f"with_locks cannot guard {getattr(function, '__qualname__', function)}: its body runs after the call; "
        f"use {alternative} for a coroutine function and acquire_locks inside a generator"
    )
