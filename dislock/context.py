"""The settings of a lock: typed values, checked at construction, never read from the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Literal, TypeAlias

from dislock.errors import ConfigurationError

#: No duration may be longer: more than a month is a typo.
LONGEST_SECONDS = 31 * 86400.0
#: More than a century is a typo.
LONGEST_DAYS = 36500
#: An entry of PostgreSQL's index has at most about 2,700 bytes, and the prefix is part of it.
LONGEST_KEY_BYTES = 2000
#: A shorter lease would expire before it can be renewed, even on a fast network.
SHORTEST_TTL_SECONDS = 0.1
#: More frequent renewals only load the database.
SHORTEST_INTERVAL_SECONDS = 0.01
DEFAULT_TTL_SECONDS = 60.0
#: ``schedule`` and ``lease``, alone or together, or ``advisory`` alone.
Strategy: TypeAlias = Literal["schedule", "lease", "advisory"]
SCHEDULE_PREFIX = "cronjob-lock:schedule:"
LEASE_PREFIX = "cronjob-lock:lease:"
#: The end of a sentence about a slot that is consumed by success.
NEEDS_BOTH = (
    "needs the strategies schedule and lease: the lease keeps runs of one tick apart until one of them has succeeded"
)


class LeaseLossPolicy(str, Enum):
    """What happens when a lease is lost while the work is still running."""

    TERMINATE = "terminate"
    """The command is stopped; leaving a guarded block raises ``LeaseLostError``."""
    CONTINUE = "continue"
    """The loss is only logged."""

    @classmethod
    def parse(cls, value: object) -> LeaseLossPolicy:
        """The policy, from itself or from its value in any case; raises ``ConfigurationError`` for anything else."""
        word = value.value if isinstance(value, cls) else value
        try:
            return cls(word.strip().lower() if isinstance(word, str) else word)
        except ValueError:
            words = " or ".join(policy.value for policy in cls)
            raise ConfigurationError(f"lease_loss_policy must be {words}, not {value!r}") from None


def default_owner() -> str:
    """``hostname:pid`` of this process."""
    node = os.fsencode(os.uname().nodename).decode("utf-8", "replace").strip()
    return f"{node or 'localhost'}:{os.getpid()}"


def default_interval(ttl: float) -> float:
    """The default pause between renewals for this TTL; both in seconds."""
    return min(max(ttl * 0.3, 1.0), 10.0, ttl)


@dataclass(frozen=True, kw_only=True)
class LockContext:
    """Everything that the locks of one job need to know; checked at construction.

    Durations are seconds. A value that cannot work raises ``ConfigurationError`` (a ``ValueError``).
    """

    url: str = field(repr=False)
    """libpq connection string: a URL or ``key=value`` words. Never part of the ``repr``."""
    table_parts: list[str] = field(default_factory=lambda: ["key_value"])
    """The lock table's name: ``["key_value"]``, ``["public", "key_value"]``, at most database, schema, table."""
    lock_key: str
    """The job's name; hosts that share it exclude each other."""
    owner: str = field(default_factory=default_owner)
    """Who holds the lock, for people: ``hostname:pid``. Need not be unique."""
    next_run_time: datetime | None = None
    """When the slot ends: a datetime with a time zone. None: computed from ``schedule`` at each entry."""
    run_ttl_seconds: float | None = DEFAULT_TTL_SECONDS
    """The TTL: how long a lease outlives its last renewal. Leases need it."""
    lease_interval_seconds: float | None = None
    """The longest pause between two renewals, at most the TTL; None: 0.3 of the TTL, from 1 to 10 seconds."""
    schedule: str | None = None
    """Cron expression: five to seven fields or an alias, as croniter reads them."""
    jitter_max_seconds: float = 0.0
    """Longest random delay before the first connection."""
    lease_loss_policy: LeaseLossPolicy | Literal["terminate", "continue"] = LeaseLossPolicy.TERMINATE
    """What happens when a lease is lost: a policy, or its value as a string."""
    time_zone: str | None = None
    """IANA name of the zone in which ``schedule`` is read; None: the database session's zone."""
    slot_tolerance_seconds: float = 5.0
    """How early, by the database's clock, a start still belongs to the coming tick."""
    connect_timeout_seconds: float = 10.0
    """How long the acquisition tries to reach the database, all hosts and all attempts together."""
    kill_grace_seconds: float = 10.0
    """How long ``run_with_locks`` waits between SIGTERM and SIGKILL."""
    journal_parts: list[str] | None = None
    """The journal's name, like ``table_parts``: ``run_with_locks`` and ``with_locks`` record each run in it."""
    journal_keep_days: int = 90
    """How long runs stay in the journal; 0 keeps all."""
    wait_seconds: float = 0.0
    """How long to wait for a lease or an advisory lock that somebody else holds. A slot is never waited for."""
    slot_consumed_by: Literal["start", "success"] = "start"
    """What closes a tick: the start of a run, or only its success. ``success`` needs both strategies."""

    def __post_init__(self) -> None:
        for name in ("url", "lock_key", "owner"):
            _check_text(name, getattr(self, name))
        if len(self.lock_key.encode()) > LONGEST_KEY_BYTES:
            raise ConfigurationError(f"lock_key must be at most {LONGEST_KEY_BYTES} bytes long")
        self._check_tables()
        for name in ("run_ttl_seconds", "lease_interval_seconds"):
            _check_seconds(name, getattr(self, name), optional=True)
        for name in ("jitter_max_seconds", "slot_tolerance_seconds", "kill_grace_seconds", "wait_seconds"):
            _check_seconds(name, getattr(self, name), zero=True)
        _check_seconds("connect_timeout_seconds", self.connect_timeout_seconds)
        ttl, interval = self.run_ttl_seconds, self.lease_interval_seconds
        if ttl is not None and ttl < SHORTEST_TTL_SECONDS:
            raise ConfigurationError(f"run_ttl_seconds must be at least {SHORTEST_TTL_SECONDS:g}, not {ttl:g}")
        if interval is not None and interval < SHORTEST_INTERVAL_SECONDS:
            raise ConfigurationError(
                f"lease_interval_seconds must be at least {SHORTEST_INTERVAL_SECONDS:g}, not {interval:g}"
            )
        if ttl is not None and interval is not None and interval > ttl:
            raise ConfigurationError(
                f"lease_interval_seconds ({interval:g}) must not be above run_ttl_seconds ({ttl:g})"
            )
        if self.next_run_time is not None:
            _check_moment("next_run_time", self.next_run_time)
        for name in ("schedule", "time_zone"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        object.__setattr__(self, "lease_loss_policy", LeaseLossPolicy.parse(self.lease_loss_policy))
        object.__setattr__(self, "slot_consumed_by", _check_consumed(self.slot_consumed_by))

    def _check_tables(self) -> None:
        for name in ("table_parts", "journal_parts"):
            if (parts := getattr(self, name)) is None and name == "journal_parts":
                continue
            _check_table(name, parts)
            # A copy: if the caller changes the list later, the lock must not move to another table.
            object.__setattr__(self, name, list(parts))
        if self.journal_parts == self.table_parts:
            raise ConfigurationError("journal_parts must not equal table_parts: the journal needs its own table")
        days = self.journal_keep_days
        if isinstance(days, bool) or not isinstance(days, int) or not 0 <= days <= LONGEST_DAYS:
            raise ConfigurationError(f"journal_keep_days must be a whole number from 0 to {LONGEST_DAYS}")

    @property
    def schedule_key(self) -> str:
        """The full row key of the schedule lock."""
        return SCHEDULE_PREFIX + self.lock_key

    @property
    def lease_key(self) -> str:
        """The full row key of the lease."""
        return LEASE_PREFIX + self.lock_key


def _check_consumed(value: object) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in ("start", "success"):
        raise ConfigurationError(f"slot_consumed_by must be start or success, not {value!r}")
    return str(word)


def advisory_parts(lock_key: str) -> list[str]:
    """The parts of an advisory lock's key: a JSON array of strings, or the lock key as the only part.

    Raises ``ConfigurationError`` for a key that begins with ``[`` and is not a JSON array of strings.
    """
    if not lock_key.startswith("["):
        return [lock_key]
    import json

    try:
        parts = json.loads(lock_key)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(
            'lock_key begins with "[", so for the strategy advisory it must be a JSON array of strings such as '
            '["billing", "42"]'
        )
    return parts


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a string that is not empty")
    if "\0" in value:
        raise ConfigurationError(f"{name} must not contain a NUL character: PostgreSQL cannot store it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} must be valid Unicode") from None


def _check_table(name: str, parts: Sequence[str]) -> None:
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise ConfigurationError(f'{name} must be a list such as ["public", "key_value"]')
    if not 1 <= len(parts) <= 3:
        raise ConfigurationError(f"{name} must have one to three parts, not {len(parts)}")
    for part in parts:
        _check_text(f"each of {name}", part)


def _check_seconds(name: str, value: object, *, optional: bool = False, zero: bool = False) -> None:
    if value is None and optional:
        return
    infinite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or infinite:
        raise ConfigurationError(f"{name} must be a finite number of seconds, not {value!r}")
    # An integer that is too large for a float can be compared, but not formatted as a float.
    if value > LONGEST_SECONDS:
        raise ConfigurationError(f"{name} must be at most {LONGEST_SECONDS:.0f} (31 days)")
    if value < 0 or (value == 0 and not zero):
        raise ConfigurationError(f"{name} must be {'zero or more' if zero else 'more than zero'}")


def _check_moment(name: str, value: object) -> None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigurationError(f"{name} must be a datetime with a time zone")
    try:
        value.astimezone(timezone.utc)
    except OverflowError:
        raise ConfigurationError(f"{name} must be a moment that a datetime in UTC can hold") from None
