"""The text of ``--help``, made from the table of settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from textwrap import wrap

from dislock._version import __version__
from dislock.cli.actions import ACTIONS, MODIFIERS, Action, Modifier
from dislock.cli.options import EXAMPLES, EXIT_CODES, GIVEN, GROUPS, OPTIONS, Option
from dislock.drivers.versions import libpq

_WIDTH = 79


def version() -> str:
    """What ``--version`` prints: what a bug report must contain."""
    import platform

    # Loaded only in the zipapp.
    build = getattr(sys.modules.get("_bootstrap.place"), "BUILD", "")
    parts = [f"build {build}"] if build else []
    parts += [f"{platform.python_implementation()} {platform.python_version()}", f"libpq {libpq()}"]
    return f"dislock {__version__} ({', '.join(parts)})\n"


def usage() -> str:
    """What ``--help`` prints: settings, environment of the command, exit codes and examples."""
    lines = [
        "usage: dislock [options] [--] URL_VARIABLE [--] command [argument ...]",
        "       dislock --check | --init | --status | ... [options] URL_VARIABLE",
        "",
        *wrap(
            "Run a command under locks in PostgreSQL, so that the same job does not run twice across hosts. "
            "URL_VARIABLE is the name of the environment variable that holds the database URL.",
            _WIDTH,
        ),
        "",
        *wrap(
            "Each setting is an environment variable or an option; the option wins. An empty value counts as unset. "
            "Options are written in full, as --name VALUE or --name=VALUE.",
            _WIDTH,
        ),
    ]
    for group in GROUPS:
        lines += ["", f"{group}:"]
        for option in OPTIONS:
            if option.group == group:
                name = f"  {option.option} {option.metavar}, {option.variable}"
                lines += ["", name, *_indented(_described(option))]
    lines += ["", "For operators, instead of a run:"]
    for action in ACTIONS:
        lines += ["", f"  {_synopsis(action)}", *_indented(action.help)]
    lines += ["", "Read by some of these:"]
    for modifier in MODIFIERS:
        lines += ["", f"  {_named(modifier)}", *_indented(_readers(modifier))]
    lines += [
        "",
        "Information:",
        "",
        "  --help, -h",
        *_indented("Print this."),
        "",
        "  --version",
        *_indented("Print the version, the zipapp's build, and the versions of Python and libpq."),
    ]
    lines += ["", "In the command's environment:", *_table(GIVEN)]
    lines += ["", "Exit codes:", *_table(EXIT_CODES)]
    lines += ["", "Examples:"]
    for title, example in EXAMPLES:
        lines += ["", f"  {title}:", f"    {example}"]
    return "\n".join(lines) + "\n"


def _named(word: Action | Modifier) -> str:
    return f"{word.option} {word.metavar}".rstrip()


def _synopsis(action: Action) -> str:
    """The action's option, its value and the options that it reads."""
    return " ".join([_named(action), *(f"[{option}]" for option in action.modifiers)])


def _readers(modifier: Modifier) -> str:
    default = modifier.default
    shown = f" (default: {default:g})" if modifier.metavar and isinstance(default, (int, float)) else ""
    return f"{modifier.help}{shown}"


def _described(option: Option) -> str:
    default = option.shown or option.default
    label = default if default is not None and default.startswith("required") else f"default: {default}"
    limited = option.strategies and not label.startswith("required")
    only = f"; read only with {' or '.join(option.strategies)}" if limited else ""
    return f"{option.help} ({label}{only})"


def _indented(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = max(len(name) for name, _ in rows) + 4
    lines = []
    for name, text in rows:
        lines += wrap(
            text, _WIDTH, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width, break_on_hyphens=False
        )
    return lines
