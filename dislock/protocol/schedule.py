"""Which tick of a cron expression a start belongs to, when its slot ends, and in which zone ticks are shown."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

from dislock.errors import ConfigurationError
from dislock.protocol.zones import find_zone

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

#: croniter's years end in 2099, and a search must be able to cross all of them.
_SEARCH_YEARS = 200
#: Before the first year that croniter knows, so every tick is later.
_BEFORE_ALL = datetime(1969, 12, 31, 23, 59, 59)
#: The last tick of an expression with years has no next one to end its slot.
_LAST_SLOT = timedelta(days=1)
_SECOND = timedelta(seconds=1)
#: The aliases of croniter. cron has more.
_ALIASES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


@dataclass(frozen=True)
class Slot:
    """The slot of one start. All times are aware and in UTC."""

    tick: datetime | None
    """Nominal time of the tick that the start belongs to; None if there was no tick yet, or it is not known."""
    expires: datetime
    """Nominal time of the next tick: the end of the row."""
    following: datetime | None = None
    """The tick after ``expires``, if there is one: a row that ends later was written under another schedule."""
    zone: tzinfo = field(default=timezone.utc, compare=False, repr=False)
    """The schedule's zone, for people."""

    def shown(self, moment: datetime | None) -> str:
        """A moment as text, in the schedule's zone."""
        return "infinity" if moment is None else str(moment.astimezone(self.zone))


class Schedule:
    """A cron expression as croniter reads it, in one time zone or in that of the database's session.

    Five fields, six (seconds come last), seven (then years), or an alias such as ``@daily``. Raises
    ``ConfigurationError`` if the expression or the zone is wrong.
    """

    def __init__(self, expression: str, zone: str | None = None) -> None:
        self.expression = _normal(expression)
        self._zone = None if zone is None else find_zone(zone)
        self._check()

    @property
    def zone_name(self) -> str | None:
        """The name of the schedule's own zone; None: the session's zone is used."""
        return None if self._zone is None else self._zone.key

    def slot(self, now: datetime, *, session_zone: str, tolerance: float) -> Slot:
        """The slot of a start at ``now``, a time by the database's clock.

        The start belongs to the latest tick, or to the coming tick if that is at most ``tolerance`` seconds, and at
        most half the gap, away. The last tick of all has a slot of one day. Raises ``ConfigurationError`` for a start
        after that, and for a ``session_zone`` that is needed but is not an IANA name.
        """
        zone = self._zone_for(session_zone)
        last, coming = self._around(now, zone)
        if coming is None:
            if last is None or now - last >= _LAST_SLOT:
                when = "there was none" if last is None else f"the last one was {last.astimezone(zone).isoformat(' ')}"
                raise ConfigurationError(f"the cron expression {self.expression!r} has no tick any more: {when}")
            return Slot(last, last + _LAST_SLOT, zone=zone)
        early = (coming - now).total_seconds() <= _effective(tolerance, last, coming)
        tick = coming if early else last
        if not early:
            return Slot(tick, coming, self._next(coming, zone), zone)
        expires = self._next(coming, zone)
        if expires is None:
            return Slot(tick, coming + _LAST_SLOT, zone=zone)
        return Slot(tick, expires, self._next(expires, zone), zone)

    def tolerance(self, now: datetime, *, session_zone: str, tolerance: float) -> float:
        """The effective slot tolerance at ``now`` in seconds: at most half the gap between the ticks."""
        return _effective(tolerance, *self._around(now, self._zone_for(session_zone)))

    def last_tick(self, now: datetime, *, session_zone: str = "UTC") -> datetime | None:
        """The latest tick at or before ``now``; None if there was none."""
        return self._around(now, self._zone_for(session_zone))[0]

    def next_tick(self, after: datetime, *, session_zone: str = "UTC") -> datetime | None:
        """The first tick after that moment; None if there is none."""
        return self._next(after.astimezone(timezone.utc).replace(microsecond=0), self._zone_for(session_zone))

    def jitter_cap(self, now: datetime, *, session_zone: str | None, tolerance: float) -> float:
        """The longest useful delay of a start in seconds: the gap between the ticks minus the tolerance.

        ``now`` is by the host's clock. Until the database's zone is known, UTC is used: the gap differs only around a
        change of the clocks, and the database decides the slot in any case.
        """
        last, coming = self._around(now, self._zone_for(session_zone or "UTC"))
        if last is None:
            return math.inf
        gap = (coming - last if coming is not None else _LAST_SLOT).total_seconds()
        return gap - _effective(tolerance, last, coming)

    def _zone_for(self, session_zone: str) -> ZoneInfo:
        if self._zone is not None:
            return self._zone
        try:
            return find_zone(session_zone)
        except ConfigurationError:
            raise ConfigurationError(
                f"the time zone of the database session, {session_zone!r}, is not an IANA name, so the ticks of the "
                "schedule cannot be computed: set CRON_TZ (in the library: time_zone), for example to Europe/Berlin"
            ) from None

    def _around(self, now: datetime, zone: ZoneInfo) -> tuple[datetime | None, datetime | None]:
        """The latest tick at or before ``now``, and the first tick after it."""
        # Ticks are whole seconds, so "before the next whole second" means "at or before now". And croniter, which
        # counts in floating point seconds, never gets a fraction.
        whole = now.astimezone(timezone.utc).replace(microsecond=0)
        return self._nearest(whole + _SECOND, zone, back=True), self._next(whole, zone)

    def _next(self, after: datetime, zone: ZoneInfo) -> datetime | None:
        return self._nearest(after, zone)

    def _nearest(self, start: datetime, zone: ZoneInfo, *, back: bool = False) -> datetime | None:
        """The first tick after ``start``, or the last one before it."""
        found = self._step(start, zone, back=back)
        # At a change of the clocks by half an hour (Lord Howe Island) croniter skips ticks that it finds in the other
        # direction.
        while found and found.astimezone(zone).utcoffset() != start.astimezone(zone).utcoffset():
            between = self._step(found, zone, back=not back)
            if between is None or not min(start, found) < between < max(start, found):
                break
            found = between
        return found

    def _step(self, start: datetime, zone: ZoneInfo | None, *, back: bool = False) -> datetime | None:
        from croniter import croniter
        from croniter.croniter import CroniterBadDateError

        begin = start if zone is None else start.astimezone(zone)
        ticks = croniter(self.expression, begin, datetime, max_years_between_matches=_SEARCH_YEARS)
        try:
            found: datetime = ticks.get_prev() if back else ticks.get_next()
        except CroniterBadDateError:
            return None
        return found if zone is None else found.astimezone(timezone.utc)

    def _check(self) -> None:
        from croniter.croniter import CroniterError

        try:
            first = self._step(_BEFORE_ALL, None)
        except CroniterError as error:
            raise ConfigurationError(f"the cron expression {self.expression!r} is not valid: {_line(error)}") from None
        except Exception:  # noqa: BLE001 - croniter's parser raises many kinds of errors
            raise ConfigurationError(f"the cron expression {self.expression!r} is not valid") from None
        if first is None:
            raise ConfigurationError(f"the cron expression {self.expression!r} names a date that never comes")


def _effective(tolerance: float, last: datetime | None, coming: datetime | None) -> float:
    if last is None or coming is None:
        return tolerance
    return min(tolerance, (coming - last).total_seconds() / 2)


def _normal(expression: str) -> str:
    if not expression.isascii():
        # Releases of croniter differ in how they read other digits and blanks.
        raise ConfigurationError(f"the cron expression {expression!r} is not valid: only ASCII characters are allowed")
    fields = expression.lower().split()
    if not fields:
        raise ConfigurationError("the cron expression is empty")
    if fields == ["@reboot"]:
        raise ConfigurationError("the cron expression '@reboot' has no ticks, so there is no slot to lock")
    if fields[0].startswith("@"):
        if fields not in [[alias] for alias in _ALIASES]:
            raise ConfigurationError(
                f"the cron expression {expression!r} is not valid: the aliases are {', '.join(_ALIASES)}"
            )
    elif len(fields) not in (5, 6, 7):
        raise ConfigurationError(
            f"the cron expression {expression!r} is not valid: it must have 5, 6 or 7 fields, and has {len(fields)}"
        )
    for word in fields:
        if re.match(r"[rh](?![a-z])", word):
            raise ConfigurationError(
                f"the cron expression {expression!r} is not valid: {word!r} is random or hashed, "
                "and every host must compute the same ticks"
            )
    return " ".join(fields)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
