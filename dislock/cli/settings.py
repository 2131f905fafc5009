"""From arguments and environment variables to checked settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dislock.cli.options import ADVISORY, LEASE, OPTIONS, SCHEDULE, BadValueError, Option
from dislock.context import NEEDS_BOTH, LockContext, Strategy, advisory_parts
from dislock.errors import ConfigurationError

# As in the package: loading typing's one takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dislock.cli.actions import Action, Modifier

_BY_OPTION = {option.option: option for option in OPTIONS}
_USAGE = "usage: dislock [options] URL_VARIABLE command [argument ...]; see dislock --help"
_LEVEL = "CRONJOB_LOCK_LOG_LEVEL"


class Help:
    """The user asked for help."""


class Version:
    """The user asked for the version."""


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
    """What the user should be told, although the run goes on."""
    hints: tuple[str, ...] = ()
    """What the user may want to know: at the level INFO."""
    log_json: bool = False
    log_time: bool = False


class Operation(NamedTuple):
    """A command of the operator, with everything that it needs to know; checked."""

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
    """The key that was given to look at nothing else."""
    timeout: float
    settings: Settings | None = None
    """What a run would have, for --check."""
    origins: tuple[tuple[str, str, str], ...] = ()
    """Each setting with its value and where it came from, for --check."""


class Unanswerable(NamedTuple):
    """A monitor's question that was asked wrongly: to be answered as it reads answers."""

    reason: str


def load(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> Settings | Operation | Unanswerable | Help | Version:
    """The settings of a run with the arguments ``argv`` (without the program's name), or a command of the operator.

    Options override ``environ``, by default the process's environment. Raises ``ConfigurationError`` that names the
    option or the variable, whichever was used. No connection is opened, and neither psycopg nor, unless the schedule
    itself is to be checked, croniter is imported.
    """
    environ = os.environ if environ is None else environ
    options: dict[str, str] = {}
    extras: list[tuple[Action | Modifier, str]] = []
    try:
        parsed = _parse(argv, options, extras)
        if not isinstance(parsed, _Arguments):
            return parsed
        reader = _Reader(parsed.options, environ)
        if parsed.action is None:
            return reader.settings(parsed.url_variable, parsed.command)
        return _operation(parsed, parsed.action, reader, environ)
    except ConfigurationError as error:
        swallowed = _swallowed(options, environ)
        reason = f"{swallowed}; {error}" if swallowed else str(error)
        if any(extra.option == "--overdue" for extra, _ in extras):
            return Unanswerable(reason)
        raise ConfigurationError(reason) from None


class _Arguments(NamedTuple):
    options: dict[str, str]
    url_variable: str | None
    command: list[str]
    action: Action | None = None
    words: Mapping[str, Any] = {}


def _parse(
    argv: Sequence[str], options: dict[str, str], extras: list[tuple[Action | Modifier, str]]
) -> _Arguments | Help | Version:
    """Fills ``options`` and ``extras`` on the way, so that what was read before a mistake is known too."""
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word in ("--help", "-h"):
            return Help()
        if word == "--version":
            return Version()
        name, equals, value = word.partition("=")
        option = _BY_OPTION.get(name)
        if option is None and (extra := _extra(name)):
            if equals and not extra.metavar:
                raise ConfigurationError(f"{name} takes no value")
            if extra.metavar and not equals:
                value = _next(name, rest)
            extras.append((extra, value))
            continue
        if option is None:
            # An unknown word may be anything, a secret too; only what looks like an option's name is repeated.
            shown = f" {name}" if re.fullmatch(r"--?[A-Za-z][A-Za-z_-]{0,30}", name) else ""
            raise ConfigurationError(f"unknown option{shown}; see dislock --help")
        if not equals:
            value = _next(name, rest)
        options[option.variable] = value
    if extras:
        return _asked(options, extras, rest)
    variable, command = rest[0] if rest else None, rest[1:]
    if command and command[0].partition("=")[0] in {*_BY_OPTION, "--help", "--version"}:
        raise ConfigurationError(f"options belong in front of the URL variable; {_USAGE}")
    return _Arguments(options, variable, command[1:] if command[:1] == ["--"] else command)


def _next(name: str, rest: list[str]) -> str:
    """The value of an option that is a word of its own."""
    # An option in the place of a value: the value was forgotten, or came from an empty variable.
    if not rest or rest[0].partition("=")[0] in _BY_OPTION:
        raise ConfigurationError(f"{name} needs a value")
    return rest.pop(0)


def _extra(name: str) -> Action | Modifier | None:
    from dislock.cli.actions import find_action, find_modifier

    return find_action(name) or find_modifier(name)


def _asked(options: dict[str, str], extras: Sequence[tuple[Action | Modifier, str]], rest: list[str]) -> _Arguments:
    """The arguments of an operator's command."""
    from dislock.cli.actions import ACTIONS, MODIFIERS, Action

    actions = [(extra, value) for extra, value in extras if isinstance(extra, Action)]
    given = [(extra, value) for extra, value in extras if not isinstance(extra, Action)]
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
    if rest[1:] and not action.command:
        raise ConfigurationError(f"{action.option} runs no command: nothing may follow the URL variable")
    command = rest[1:]
    return _Arguments(
        options, rest[0] if rest else None, command[1:] if command[:1] == ["--"] else command, action, words
    )


def _own_key(name: str, text: str) -> str:
    from dislock.cli.options import read_lock_key

    key: str = _checked(name, read_lock_key, text)
    if not key:
        raise ConfigurationError(f"{name} needs the key of a job")
    return key


def _checked(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(_utf8(text).strip())
    except BadValueError as error:
        raise ConfigurationError(f"{name} {error}") from None


def _operation(parsed: _Arguments, action: Action, reader: _Reader, environ: Mapping[str, str]) -> Operation:
    url = _url(parsed.url_variable, environ) if action.opens else ""
    table, journal = reader.value("LOCK_TABLE"), reader.value("LOCK_JOURNAL")
    if action.needs_journal and journal is None:
        raise ConfigurationError(f"{action.option} reads the journal: name its table in LOCK_JOURNAL or --journal")
    only = None
    if "LOCK_KEY" in parsed.options:
        # The variable alone is no filter: a crontab may set it for other lines.
        only = reader.value("LOCK_KEY")
        if "--lock-key" not in action.modifiers and not action.command:
            raise ConfigurationError(f"{action.option} does not read --lock-key; see dislock --help")
    settings = None
    origins: tuple[tuple[str, str, str], ...] = ()
    if action.command:
        settings = reader.settings(parsed.url_variable, parsed.command, needs_command=False)
        origins = reader.origins(settings.strategies)
    return Operation(
        action=action.option,
        key=parsed.words.get(action.option),
        words=parsed.words,
        url=url,
        url_variable=parsed.url_variable or "",
        table=table,
        journal=journal,
        only=only,
        timeout=reader.value("LOCK_CONNECT_TIMEOUT_SECONDS"),
        settings=settings,
        origins=origins,
    )


def _swallowed(options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """An option that took the URL's variable for its value, as a sentence's begin; "" if none did."""
    for option in OPTIONS:
        name = options.get(option.variable, "")
        if re.match(r"\s*\w*://|.*\b(host|dbname|service)\s*=", environ.get(name, "")):
            return f"{option.option} took {name} for its value: its own was forgotten"
    return ""


def _url(variable: str | None, environ: Mapping[str, str]) -> str:
    if variable is None:
        raise ConfigurationError(f"the name of the variable with the database URL is missing; {_USAGE}")
    if "://" in variable or "=" in variable:
        raise ConfigurationError(
            "the first argument must be the name of the environment variable that holds the database URL, "
            "not the URL itself"
        )
    if not environ.get(variable, "").strip():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", variable):
            raise ConfigurationError("the first argument must be the name of an environment variable that is set")
        state = "empty" if variable in environ else "not set"
        raise ConfigurationError(f"the environment variable {variable}, which must hold the database URL, is {state}")
    url = _utf8(environ[variable]).strip()
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{variable} must be valid UTF-8") from None
    return url


class _Reader:
    def __init__(self, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self._notices: list[str] = []

    def settings(self, url_variable: str | None, command: list[str], *, needs_command: bool = True) -> Settings:
        url = _url(url_variable, self._environ)
        assert url_variable is not None
        if not command and needs_command:
            raise ConfigurationError(f"no command was given; {_USAGE}")
        strategies = self.value("LOCK_STRATEGY")
        values = {option.variable: self.value(option.variable) for option in OPTIONS if option.is_read_by(strategies)}
        for variable, strategy in (("LOCK_KEY", None), ("CRON_SCHEDULE", SCHEDULE)):
            if values.get(variable) is None and strategy in (None, *strategies):
                raise ConfigurationError(self._missing(variable, strategy))
        if values["LOCK_JOURNAL"] == values["LOCK_TABLE"]:
            name = self._name("LOCK_JOURNAL")
            raise ConfigurationError(f"{name} names the lock table: the journal is a table of its own")
        self._check_combination(strategies, values["LOCK_SLOT_CONSUMED_BY"])
        ttl = interval = None
        if LEASE in strategies:
            ttl = values["RUN_LOCK_TTL_SECONDS"]
            interval = self._interval(ttl, values["LOCK_LEASE_INTERVAL"])
        if ADVISORY in strategies:
            self._check_advisory_key(values["LOCK_KEY"])
        if SCHEDULE in strategies:
            self._check_schedule(values["CRON_SCHEDULE"], values["CRON_TZ"])
        context = LockContext(
            url=url,
            table_parts=values["LOCK_TABLE"],
            lock_key=values["LOCK_KEY"],
            run_ttl_seconds=ttl,
            lease_interval_seconds=interval,
            schedule=values.get("CRON_SCHEDULE"),
            jitter_max_seconds=values["LOCK_JITTER_SECONDS"],
            lease_loss_policy=values["LOCK_ON_LEASE_LOSS"],
            time_zone=values.get("CRON_TZ"),
            connect_timeout_seconds=values["LOCK_CONNECT_TIMEOUT_SECONDS"],
            kill_grace_seconds=values["LOCK_KILL_GRACE_SECONDS"],
            journal_parts=values["LOCK_JOURNAL"],
            journal_keep_days=values["LOCK_JOURNAL_KEEP_DAYS"],
            # A field of the schedule alone; without one its default does no harm.
            **({"slot_tolerance_seconds": values["LOCK_SLOT_TOLERANCE_SECONDS"]} if SCHEDULE in strategies else {}),
            wait_seconds=values.get("LOCK_WAIT_SECONDS", 0.0),
            slot_consumed_by=values["LOCK_SLOT_CONSUMED_BY"],
        )
        for ours, theirs in _slips(self._environ, self._options).items():
            self._notices.append(f"{theirs} is no setting of dislock, and {ours}, which is one, is not set")
        idle, hints = self._without_effect(strategies, values)
        return Settings(
            context,
            strategies,
            list(command),
            values[_LEVEL],
            url_variable,
            values["LOCK_SKIPPED_EXIT_CODE"],
            (*self._notices, *idle),
            tuple(hints),
            values["CRONJOB_LOCK_LOG_FORMAT"] == "json",
            values["CRONJOB_LOCK_LOG_TIME"],
        )

    def origins(self, strategies: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
        """Each setting that a run reads, with its text and where that came from."""
        found = []
        for option in OPTIONS:
            if not option.is_read_by(strategies):
                continue
            if option.variable in self._options:
                text, source = self._options[option.variable], option.option
            elif self._environ.get(option.variable, "").strip():
                text, source = self._environ[option.variable], option.variable
            else:
                text, source = option.default or option.shown, "default"
            found.append((option.variable, _utf8(text).strip(), source))
        return tuple(found)

    def _without_effect(self, strategies: tuple[str, ...], values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """What was set in vain: by an option, which was meant for this run, and by a variable, which may not be."""
        options, variables = [], []
        for option in OPTIONS:
            needed = None
            if not option.is_read_by(strategies):
                needed = f"the strategy {' or '.join(option.strategies)}"
            if option.variable == "LOCK_JOURNAL_KEEP_DAYS" and values["LOCK_JOURNAL"] is None:
                needed = "a journal (--journal)"
            if needed is None:
                continue
            if option.variable in self._options:
                options.append(f"{option.option} has no effect without {needed}")
            elif self._environ.get(option.variable, "").strip():
                variables.append(f"{option.variable} has no effect without {needed}")
        return options, variables

    def value(self, variable: str) -> Any:
        """The checked value of a setting, or None when it is neither set nor has a default."""
        option = next(option for option in OPTIONS if option.variable == variable)
        text = _utf8(self._options.get(variable, self._environ.get(variable, ""))).strip()
        if not text:
            return None if option.default is None else option.read(option.default)
        try:
            return option.read(text)
        except BadValueError as error:
            if variable == _LEVEL and variable not in self._options:
                # A variable that many programs share must not stop this one; an option was meant for it.
                self._notices.append(f"{variable} {error}; using {option.default}")
                return option.read(str(option.default))
            raise ConfigurationError(f"{self._name(option)} {error}") from None

    def _name(self, option: Option | str) -> str:
        """The name under which the user gave the setting."""
        if isinstance(option, str):
            option = next(each for each in OPTIONS if each.variable == option)
        return option.option if option.variable in self._options else option.variable

    def _missing(self, variable: str, strategy: str | None) -> str:
        given = variable in self._options or variable in self._environ
        option = next(option for option in OPTIONS if option.variable == variable)
        needed = "" if strategy is None else f", and the strategy {strategy} needs it"
        if given:
            return f"{self._name(option)} is empty{needed}"
        slips = _slips(self._environ, self._options).items()
        hint = "".join(f"; {theirs} is set, but the setting is called {ours}" for ours, theirs in slips)
        return f"{variable} (or {option.option}) is not set{needed}{hint}"

    def _interval(self, ttl: float, interval: float | None) -> float | None:
        if interval is not None and interval > ttl:
            raise ConfigurationError(
                f"{self._name('LOCK_LEASE_INTERVAL')} ({interval:g}) must not be above "
                f"{self._name('RUN_LOCK_TTL_SECONDS')} ({ttl:g})"
            )
        return interval

    def _check_combination(self, strategies: tuple[str, ...], consumed_by: str) -> None:
        # A variable may be meant for other lines of a crontab; an option is meant for this run.
        if strategies == (SCHEDULE,) and self._options.get("LOCK_WAIT_SECONDS", "").strip():
            raise ConfigurationError(
                "--wait needs the strategy lease: a slot is never waited for, because a tick that was started is not "
                "started again"
            )
        if consumed_by == "success" and strategies != (SCHEDULE, LEASE):
            raise ConfigurationError(f"{self._name('LOCK_SLOT_CONSUMED_BY')} success {NEEDS_BOTH}")

    def _check_advisory_key(self, key: str) -> None:
        try:
            advisory_parts(key)
        except ConfigurationError as error:
            text = str(error).removeprefix("lock_key ")
            raise ConfigurationError(f"{self._name('LOCK_KEY')} {text}") from None

    def _check_schedule(self, expression: str, zone: str | None) -> None:
        from dislock.protocol.schedule import Schedule
        from dislock.protocol.zones import find_zone

        variable = "CRON_TZ"
        try:
            if zone is not None:
                find_zone(zone)
            variable = "CRON_SCHEDULE"
            Schedule(expression)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._name(variable)}: {error}") from None


def _slips(environ: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Variables that are none of ours, but look as if one of ours were meant that is not set: ours to theirs."""
    known = {option.variable for option in OPTIONS}
    strange = [name for name in environ if name not in known and re.match("(RUN_|CRONJOB_)?LOCK_|CRON_", name)]
    if not strange:
        return {}
    import difflib

    unset = {_core(name): name for name in known - options.keys() if not environ.get(name)}
    found = {}
    for name in sorted(strange):
        if meant := difflib.get_close_matches(_core(name), unset, 1, 0.87):
            found[unset[meant[0]]] = name
    return found


def _core(name: str) -> str:
    """A variable's name without what is most easily forgotten or added."""
    return name.removeprefix("RUN_").removeprefix("CRONJOB_").removesuffix("_SECONDS")


def _utf8(text: str) -> str:
    """Text of the system read as UTF-8 whatever the locale: a key must be the same on every host."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
