"""The events of a lock or a run: one value for each, and the logger that gets them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

logger = logging.getLogger("dislock")


class Event(NamedTuple):
    """One event. A log record of this package carries it as the attribute ``dislock``."""

    name: str
    """What happened, in one or two words: ``taken``, ``refused``, ``lost``; documented in the reference."""
    level: int
    """A level of ``logging``."""
    message: str
    """One line for people, without secrets."""
    fields: Mapping[str, object] = MappingProxyType({})
    """What programs read: key, owner, slot, token; durations in seconds, moments in UTC."""


#: Where events go that must not be logged in the thread in which they happen.
SINK: ContextVar[Callable[[Event], None] | None] = ContextVar("dislock events", default=None)


def report(event: Event) -> None:
    """Passes the event to the package's logger. A handler that fails does not affect a lock or a run."""
    if sink := SINK.get():
        sink(event)
        return
    try:
        logger.log(event.level, "%s", event.message, extra={"dislock": event})
    except Exception:  # noqa: BLE001 - a user's filter or handler may raise anything
        return
