"""The man page, made from the tables of settings, commands and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dislock.cli.actions import ACTIONS, MODIFIERS
from dislock.cli.options import EXAMPLES, EXIT_CODES, GIVEN, GROUPS, OPTIONS

_ABOUT = (
    "dislock runs a command under locks in PostgreSQL, so that the same job does not run twice across hosts. "
    "URL_VARIABLE is the name of the environment variable that holds the database URL."
)
_RULES = (
    "Each setting is an environment variable or an option; the option wins. An empty value counts as unset. "
    "Options are written in full, as --name VALUE or --name=VALUE, in front of the first argument."
)


def page() -> str:
    """The source of dislock(1)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made from the table of settings; not edited by hand.'
    yield '.TH DISLOCK 1 "" "dislock" "User Commands"'
    yield from _section("NAME", "dislock - run a command under locks in PostgreSQL")
    yield ".SH SYNOPSIS"
    yield from (
        ".B dislock",
        r"[options] [\-\-] URL_VARIABLE [\-\-] command [argument ...]",
        ".br",
        ".B dislock",
        r"\-\-check | \-\-init | \-\-status | ... [options] URL_VARIABLE",
    )
    yield from _section("DESCRIPTION", _ABOUT)
    yield from (".PP", _text(_RULES))
    for group in GROUPS:
        yield f'.SH "{group.upper()}"'
        for option in (each for each in OPTIONS if each.group == group):
            default = option.shown or option.default or ""
            shown = default if default.startswith("required") else f"default: {default}"
            yield from _entry(f"{option.option} {option.metavar}, {option.variable}", f"{option.help} ({shown})")
    yield '.SH "COMMANDS OF THE OPERATOR"'
    for action in ACTIONS:
        words = [f"{action.option} {action.metavar}".strip(), *(f"[{word}]" for word in action.modifiers)]
        yield from _entry(" ".join(words), action.help)
    yield ".PP"
    yield "Read by some of these:"
    for modifier in MODIFIERS:
        yield from _entry(f"{modifier.option} {modifier.metavar}".strip(), modifier.help)
    yield from _table("ENVIRONMENT OF THE COMMAND", GIVEN)
    yield from _table("EXIT STATUS", EXIT_CODES)
    yield ".SH EXAMPLES"
    for title, example in EXAMPLES:
        yield from (".PP", _text(f"{title}:"), ".PP", ".nf", ".RS 2")
        yield from (_text(line.strip()) for line in example.splitlines())
        yield from (".RE", ".fi")
    yield from _section("SEE ALSO", "psql(1), crontab(5), flock(1)")


def _section(title: str, text: str) -> tuple[str, str]:
    return f".SH {title}", _text(text)


def _entry(name: str, text: str) -> tuple[str, str, str]:
    return ".TP", f".B {_text(name)}", _text(text)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f'.SH "{title}"'
    for name, text in rows:
        yield from _entry(name, text)


def _text(text: str) -> str:
    """The text for roff: nothing in it is a request or an escape, and a hyphen can be copied as a hyphen."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", text)
