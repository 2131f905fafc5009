"""Splits a command line into options, the URL's variable and a command. No value is checked here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dislock.cli.options import OPTIONS
from dislock.errors import ConfigurationError

# As in the package: loading typing's one takes longer than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dislock.cli.actions import Action, Modifier

_BY_OPTION = {option.option: option for option in OPTIONS}
USAGE = "usage: dislock [options] URL_VARIABLE command [argument ...]; see dislock --help"


class Help:
    """The user asked for help."""


class Version:
    """The user asked for the version."""


class Arguments(NamedTuple):
    options: dict[str, str]
    url_variable: str | None
    command: list[str]
    action: Action | None = None
    words: Mapping[str, Any] = {}


def parse(
    argv: Sequence[str], options: dict[str, str], extras: list[tuple[Action | Modifier, str]]
) -> Arguments | Help | Version:
    """Parses ``argv``. Fills ``options`` and ``extras``, so that the caller knows what came before a mistake."""
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
            # An unknown word may be a secret. Only one that looks like an option's name is printed.
            shown = f" {name}" if re.fullmatch(r"--?[A-Za-z][A-Za-z_-]{0,30}", name) else ""
            raise ConfigurationError(f"unknown option{shown}; {_meant(name)} dislock --help")
        if not equals:
            value = _next(name, rest)
        options[option.variable] = value
    variable, command = rest[0] if rest else None, rest[1:]
    if command and (name := _option_in(command[0])):
        raise ConfigurationError(f"{name} belongs in front of the URL variable; {USAGE}")
    command = command[1:] if command[:1] == ["--"] else command
    return _asked(options, extras, variable, command) if extras else Arguments(options, variable, command)


def _next(name: str, rest: list[str]) -> str:
    """The value of an option: the next word."""
    # An option where the value should be: the value was forgotten, or it came from an empty variable.
    if not rest or _option_in(rest[0]):
        raise ConfigurationError(f"{name} needs a value")
    return rest.pop(0)


def _option_in(word: str) -> str:
    """The option that the word is or begins with; "" if it is none."""
    name = word.partition("=")[0]
    known = name in _BY_OPTION or name in ("--help", "--version")
    return name if known or (name.startswith("--") and _extra(name)) else ""


def _meant(name: str) -> str:
    """A question about the option whose name is nearly that one, and where to see all of them."""
    import difflib

    from dislock.cli.actions import ACTIONS, MODIFIERS

    known = [*_BY_OPTION, *(each.option for each in (*ACTIONS, *MODIFIERS)), "--help", "--version"]
    meant = difflib.get_close_matches(name.lower(), known, 1, 0.8)
    return f"did you mean {meant[0]}? See" if meant else "see"


def _extra(name: str) -> Action | Modifier | None:
    from dislock.cli.actions import find_action, find_modifier

    return find_action(name) or find_modifier(name)


def _asked(
    options: dict[str, str], extras: Sequence[tuple[Action | Modifier, str]], variable: str | None, command: list[str]
) -> Arguments:
    """The arguments of an operator's command."""
    from dislock.cli.actions import chosen

    action, words = chosen(extras)
    if command and not action.command:
        raise ConfigurationError(f"{action.option} runs no command: nothing may follow the URL variable")
    return Arguments(options, variable, command, action, words)
