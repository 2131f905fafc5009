"""From arguments and environment variables to checked settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dislock.cli.arguments import USAGE, Arguments, Help, Version, parse
from dislock.cli.asked import Operation, Settings, Unanswerable
from dislock.cli.options import OPTIONS, Option
from dislock.cli.values import ADVISORY, LEASE, SCHEDULE, BadValueError, as_utf8
from dislock.context import NEEDS_BOTH, LockContext, advisory_parts
from dislock.errors import ConfigurationError

# As in the package: loading typing's one takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dislock.cli.actions import Action, Modifier

_LEVEL = "CRONJOB_LOCK_LOG_LEVEL"
#: What the zipapp reads before this program starts.
_OF_THE_ZIPAPP = frozenset({"DISLOCK_CACHE", "DISLOCK_PYTHON"})


def load(
    argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> Settings | Operation | Unanswerable | Help | Version:
    """The settings of a run, or an operator's command, from the arguments ``argv`` (without the program's name).

    Options override ``environ``, by default the process's environment. Raises ``ConfigurationError``, which names the
    option or the variable, whichever was used. Opens no connection. Does not import psycopg, and imports croniter only
    to check a schedule.
    """
    environ = os.environ if environ is None else environ
    options: dict[str, str] = {}
    extras: list[tuple[Action | Modifier, str]] = []
    try:
        parsed = parse(argv, options, extras)
        if not isinstance(parsed, Arguments):
            return parsed
        reader = _Reader(parsed.options, environ)
        if parsed.action is None:
            return reader.settings(parsed.url_variable, parsed.command)
        return _operation(parsed, parsed.action, reader, environ)
    except ConfigurationError as error:
        swallowed = _swallowed(options, extras, environ)
        reason = f"{swallowed}; {error}" if swallowed else str(error)
        if any(extra.option == "--overdue" for extra, _ in extras):
            return Unanswerable(reason)
        raise ConfigurationError(reason) from None


def _operation(parsed: Arguments, action: Action, reader: _Reader, environ: Mapping[str, str]) -> Operation:
    url = _url(parsed.url_variable, environ) if action.opens else ""
    table, journal = reader.value("LOCK_TABLE"), reader.value("LOCK_JOURNAL")
    if action.needs_journal and journal is None:
        raise ConfigurationError(f"{action.option} reads the journal: name its table in LOCK_JOURNAL or --journal")
    only = None
    if "LOCK_KEY" in parsed.options:
        # The variable does not filter: a crontab may set it for other lines.
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


def _swallowed(
    options: Mapping[str, str], extras: Sequence[tuple[Action | Modifier, str]], environ: Mapping[str, str]
) -> str:
    """That an option took the URL's variable as its value, as the beginning of a sentence; "" if none did."""
    given = [(option.option, options.get(option.variable, "")) for option in OPTIONS]
    for option, name in given + [(extra.option, value) for extra, value in extras]:
        if re.match(r"\s*\w*://|.*\b(host|dbname|service)\s*=", environ.get(name, "")):
            return f"{option} took {name} as its value: its own value is missing"
    return ""


def _url(variable: str | None, environ: Mapping[str, str]) -> str:
    if variable is None:
        raise ConfigurationError(f"the name of the variable with the database URL is missing; {USAGE}")
    if "://" in variable or "=" in variable:
        raise ConfigurationError(
            "the first argument must be the name of the environment variable that holds the database URL, "
            "not the URL itself"
        )
    if not environ.get(variable, "").strip():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", variable):
            # The next field of an expression without quotes.
            field = re.fullmatch("[0-9*/,-]{1,5}", variable)
            hint = f", not {variable}: put the cron expression in quotes" if field else ""
            raise ConfigurationError(
                f"the first argument must be the name of an environment variable that is set{hint}"
            )
        state = "empty" if variable in environ else "not set"
        raise ConfigurationError(f"the environment variable {variable}, which must hold the database URL, is {state}")
    url = as_utf8(environ[variable]).strip()
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
            raise ConfigurationError(f"no command was given; {USAGE}")
        strategies = self.value("LOCK_STRATEGY")
        values = {option.variable: self.value(option.variable) for option in OPTIONS if option.is_read_by(strategies)}
        for variable, strategy in (("LOCK_KEY", None), ("CRON_SCHEDULE", SCHEDULE)):
            if values.get(variable) is None and strategy in (None, *strategies):
                raise ConfigurationError(self._missing(variable, strategy))
        if values["LOCK_JOURNAL"] == values["LOCK_TABLE"]:
            name = self._name("LOCK_JOURNAL")
            raise ConfigurationError(f"{name} names the lock table: the journal needs its own table")
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
            # Read only with a schedule; without one the default does no harm.
            **({"slot_tolerance_seconds": values["LOCK_SLOT_TOLERANCE_SECONDS"]} if SCHEDULE in strategies else {}),
            wait_seconds=values.get("LOCK_WAIT_SECONDS", 0.0),
            slot_consumed_by=values["LOCK_SLOT_CONSUMED_BY"],
        )
        for ours, theirs in _slips(self._environ, self._options).items():
            self._notices.append(f"{theirs} is not a setting of dislock; did you mean {ours}, which is not set?")
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
        """Each setting that a run reads, with its text and where the text came from."""
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
            found.append((option.variable, as_utf8(text).strip(), source))
        return tuple(found)

    def _without_effect(self, strategies: tuple[str, ...], values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Messages about options without effect, which were meant for this run, and about variables without effect."""
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
        """The checked value of a setting; None if it is not set and has no default."""
        option = next(option for option in OPTIONS if option.variable == variable)
        text = as_utf8(self._options.get(variable, self._environ.get(variable, ""))).strip()
        if not text:
            return None if option.default is None else option.read(option.default)
        try:
            return option.read(text)
        except BadValueError as error:
            if variable == _LEVEL and variable not in self._options:
                # A variable may be meant for other programs, so it must not stop this one. An option is not.
                self._notices.append(f"{variable} {error}; using {option.default}")
                return option.read(str(option.default))
            raise ConfigurationError(f"{self._name(option)} {error}") from None

    def _name(self, option: Option | str) -> str:
        """The name that the user used for the setting: the option or the variable."""
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
        # A variable may be meant for other lines of a crontab. An option is meant for this run.
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
    """Variables whose names are nearly those of settings that are not set: the setting's name to the variable's."""
    known = {option.variable for option in OPTIONS} | _OF_THE_ZIPAPP
    strange = [name for name in environ if name not in known and re.match("(RUN_?|CRONJOB_?|DIS)?LOCK|CRON", name)]
    if not strange:
        return {}
    import difflib

    unset = {_core(name): name for name in known - options.keys() if not environ.get(name)}
    # A variable may be named after the option, too.
    after = {"LOCKSCHEDULE": "CRON_SCHEDULE", "LOCKTIMEZONE": "CRON_TZ", "CRONTIMEZONE": "CRON_TZ"}
    unset |= {core: name for core, name in after.items() if name in unset.values()}
    found = {}
    for name in sorted(strange):
        if meant := difflib.get_close_matches(_core(name), unset, 1, 0.87):
            found[unset[meant[0]]] = name
    return found


def _core(name: str) -> str:
    """A variable's name without what is most easily forgotten or added."""
    return name.replace("_", "").removeprefix("RUN").removeprefix("CRONJOB").removesuffix("SECONDS")
