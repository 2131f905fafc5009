"""Generates the parts of the documents that come from the code; a test fails if one is out of date.

Each is between two comments, ``<!-- generated: NAME -->`` and ``<!-- /generated -->``, except the man page and the
pictures, which are whole files.
"""

from __future__ import annotations

import re
from pathlib import Path

from ci import wings
from dislock.cli.options import EXIT_CODES, GIVEN, GROUPS, OPTIONS, Option

from . import man, messages, pictures

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- /generated -->)", re.DOTALL)
#: ``start: …`` in the help of an option whose values are words.
_WORD = re.compile(r"(?:^|(?<=\. ))([a-z,]+):(?= )")


def fresh() -> dict[Path, str]:
    """The current text of each document with a generated part."""
    parts = {
        "settings": settings(),
        "settings-in-full": settings_in_full(),
        "exit-codes": exit_codes(),
        "environment": environment(),
        "wings": f"```text\n{wings.picture(wings.House(ROOT / wings.PACKAGE))}\n```\n",
        **{f"messages-{name}": text for name, text in messages.parts().items()},
    }
    found = {HERE / "dislock.1": man.page()}
    for name, picture in pictures.all_of_them().items():
        found[ROOT / "docs" / "pictures" / f"{name}.svg"] = picture
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = document.read_text()
        renewed = _PART.sub(lambda match: match[1] + parts[match[2]] + match[3], text)
        if _PART.search(text):
            found[document] = renewed
    return found


def refresh() -> list[Path]:
    """Writes what is out of date; returns the files that changed."""
    changed = []
    for file, text in fresh().items():
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            changed.append(file)
    return changed


def settings() -> str:
    """A row for each setting: variable, option, default and a short description."""
    lines = ["| variable | option | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{option.variable}` | `{option.option}` | {_default(option)} | {_half_a_line(option)} |"
        for option in OPTIONS
    ]
    return "\n".join(lines) + "\n"


def settings_in_full() -> str:
    """A section for each group of settings, with everything that ``--help`` says."""
    lines: list[str] = []
    for group in GROUPS:
        lines += [f"## {group}", ""]
        for option in (each for each in OPTIONS if each.group == group):
            default = _default(option)
            shown = default.capitalize() if default.startswith("required") else f"Default: {default}"
            lines += [f"### {option.variable}", "", f"`{option.option} {option.metavar}`. {shown}."]
            if option.strategies:
                lines[-1] += " Read only with " + " or ".join(f"`{name}`" for name in option.strategies) + "."
            lines += ["", _markdown(option.help), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def exit_codes() -> str:
    return _rows(("exit code", "meaning"), EXIT_CODES)


def environment() -> str:
    return _rows(("variable", "holds"), GIVEN)


def _rows(heading: tuple[str, str], rows: tuple[tuple[str, str], ...]) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {_markdown(text)} |" for name, text in rows)]) + "\n"


def _default(option: Option) -> str:
    if option.default is not None:
        return f"`{option.default}`"
    return option.shown


def _half_a_line(option: Option) -> str:
    """The words that an option takes, or the first sentence of its help up to a colon or semicolon."""
    words = [f"`{word}`" for word in _WORD.findall(option.help)]
    if len(words) > 1:
        text = ", ".join(words[:-1]) + f" or {words[-1]}"
    else:
        text = re.split(r"[;:] |\.(?: |$)", option.help)[0]
    return f"[{text}](docs/settings.md#{option.variable.lower()})"


def _markdown(text: str) -> str:
    """Help as Markdown: words before a colon, options, and what a reader would type become code."""
    text = _WORD.sub(lambda match: f"`{match[1]}`:", text)
    return re.sub(r'(?<![\w`-])(--[a-z-]+|"my\.schema"\."locks"|@daily)(?![\w-])', r"`\1`", text).replace("|", r"\|")
