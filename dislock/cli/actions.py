"""The operator's commands: the option of each, its value, and the options that only some of them read.

The parser and ``--help`` derive from ``ACTIONS`` and ``MODIFIERS``. Loaded only for an option that no run has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dislock.cli.values import BadValueError, as_utf8, read_lock_key, seconds
from dislock.errors import ConfigurationError


class Modifier(NamedTuple):
    """An option that some actions read."""

    option: str
    metavar: str
    """What its value is called; empty: it takes none."""
    help: str
    read: Callable[[str], object]
    default: object = None
    many: bool = False
    """Whether it may be given several times."""


class Action(NamedTuple):
    """A command of the operator."""

    option: str
    metavar: str
    """What its own value is called; empty: it takes none."""
    help: str
    modifiers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("LOCK_TABLE", "LOCK_JOURNAL", "LOCK_CONNECT_TIMEOUT_SECONDS")
    """The settings that it reads beside the URL's variable."""
    needs_journal: bool = False
    opens: bool = True
    """Whether it needs a database, and so the variable with its URL."""
    command: bool = False
    """Whether the command of a run may follow the variable."""


def _flag(_: str) -> bool:
    return True


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise BadValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return read


MODIFIERS = (
    Modifier("--json", "", "JSON instead of a table.", _flag, default=False),
    Modifier("--limit", "N", "How many runs to list.", _whole(1, 1_000_000), 20),
    Modifier("--late", "SECONDS", "How long after its time a tick is overdue.", seconds(), 300.0),
    Modifier("--expect", "KEY", "A key that may never have run; can be given several times.", read_lock_key, many=True),
    Modifier("--days", "N", "How many days the timeline shows.", _whole(1, 366), 1),
    Modifier("--slot", "", "Free the tick alone, to run a failed job again.", _flag, default=False),
    Modifier("--force", "", "Do not ask.", _flag, default=False),
)

_KEY = "--lock-key"
ACTIONS = (
    Action(
        "--schema",
        "",
        "Print the SQL that creates the lock table, and the journal if one is named, and that grants a role the "
        "privileges it needs. Opens no connection.",
        settings=("LOCK_TABLE", "LOCK_JOURNAL"),
        opens=False,
    ),
    Action("--init", "", "Create the lock table, and the journal if one is named, where they are missing."),
    Action(
        "--check",
        "",
        "Do everything but lock and run: show each setting and where it came from, the server, the tables, the "
        "clocks, and the next five ticks. The exit code is 0 if a run would start its command, else the run's: 1 or 2.",
        settings=(),
        command=True,
    ),
    Action("--status", "", "List the locks: who holds what, and until when.", ("--json", _KEY)),
    Action("--runs", "", "List the runs, newest first.", ("--json", "--limit", _KEY), needs_journal=True),
    Action(
        "--overdue",
        "",
        "Report which jobs are not well, as a Nagios plugin: exit code 0 (all well), 1 (warning), 2 (missed, failed or "
        "died) or 3 (unknown).",
        ("--json", "--late", "--expect", _KEY),
        needs_journal=True,
    ),
    Action(
        "--metrics",
        "",
        "Print the state of the jobs in the text format of Prometheus.",
        ("--late", "--expect", _KEY),
        needs_journal=True,
    ),
    Action(
        "--timeline", "", "Print an HTML page with a bar for each run.", ("--days", "--late", _KEY), needs_journal=True
    ),
    Action(
        "--release",
        "KEY",
        "Free the locks of a key by force. Asks on a terminal; elsewhere it needs --force.",
        ("--slot", "--force"),
    ),
    Action(
        "--forget",
        "KEY",
        "Delete the runs of a job that was retired, and its locks that nobody holds. Asks as --release does.",
        ("--force",),
    ),
)


def find_action(name: str) -> Action | None:
    """The action of that option."""
    return next((action for action in ACTIONS if action.option == name), None)


def find_modifier(name: str) -> Modifier | None:
    """The modifier of that option."""
    return next((modifier for modifier in MODIFIERS if modifier.option == name), None)


def chosen(extras: Sequence[tuple[Action | Modifier, str]]) -> tuple[Action, dict[str, Any]]:
    """The action among options that no run has, and all their values, the action's own included."""
    actions = [(extra, value) for extra, value in extras if isinstance(extra, Action)]
    given = [(extra, value) for extra, value in extras if isinstance(extra, Modifier)]
    if not actions:
        name = given[0][0].option
        readers = ", ".join(action.option for action in ACTIONS if name in action.modifiers)
        raise ConfigurationError(f"{name} is read only with {readers}; see dislock --help")
    (action, own), *others = actions
    if others:
        raise ConfigurationError(f"{action.option} and {others[0][0].option} cannot be given together")
    words: dict[str, Any] = {
        each.option: [] if each.many else each.default for each in MODIFIERS if each.option in action.modifiers
    }
    for modifier, text in given:
        if modifier.option not in words:
            raise ConfigurationError(f"{action.option} does not read {modifier.option}; see dislock --help")
        value = _checked(modifier.option, modifier.read, text)
        words[modifier.option] = [*words[modifier.option], value] if modifier.many else value
    if action.metavar:
        words[action.option] = _own_key(action.option, own)
    return action, words


def _own_key(name: str, text: str) -> str:
    key: str = _checked(name, read_lock_key, text)
    if not key:
        raise ConfigurationError(f"{name} needs the key of a job")
    return key


def _checked(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(as_utf8(text).strip())
    except BadValueError as error:
        raise ConfigurationError(f"{name} {error}") from None
