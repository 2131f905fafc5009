"""What a command line asks for, checked: a run, or a command of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dislock.context import LockContext, Strategy


class Settings(NamedTuple):
    """Everything that a run needs to know; checked."""

    context: LockContext
    strategies: tuple[Strategy, ...]
    command: list[str]
    log_level: int
    url_variable: str
    skipped: int | None = None
    """The exit code when somebody else holds the lock; None: 0, or 1 after a wait."""
    notices: tuple[str, ...] = ()
    """Warnings for the user; the run goes on."""
    hints: tuple[str, ...] = ()
    """What the user may want to know; logged at INFO."""
    log_json: bool = False
    log_time: bool = False


class Operation(NamedTuple):
    """An operator's command with everything that it needs to know; checked."""

    action: str
    """Its option."""
    key: str | None
    """Its own value: the key that it is about."""
    words: Mapping[str, Any]
    """The values of its modifiers, by their options."""
    url: str
    url_variable: str
    table: list[str]
    journal: list[str] | None
    only: str | None
    """The only key to look at; None: all keys."""
    timeout: float
    settings: Settings | None = None
    """The settings of a run, for --check."""
    origins: tuple[tuple[str, str, str], ...] = ()
    """Each setting with its value and where it came from, for --check."""


class Unanswerable(NamedTuple):
    """A wrong question of a monitor. The answer must have the form that monitors read."""

    reason: str
