"""Every text that the product can print, read from the source: prose in strings, except docstrings and SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The modules under each heading of the page; a module belongs to the first heading that fits.
PARTS = {
    "advisory": ("pg_advisory_lock/",),
    "operators": ("dislock/journal/", "dislock/cli/operate", "dislock/cli/check", "dislock/cli/schema"),
    "settings": ("dislock/cli/", "dislock/context", "dislock/request", "dislock/drivers/targets"),
    "process": ("dislock/process/", "dislock/command"),
    "locks": ("dislock/",),
}
#: Tables with the text of ``--help``, which is on other pages: only what they raise counts.
_TABLES = ("dislock/cli/options.py", "dislock/cli/actions.py")
#: Modules whose texts are on another page, are sent to the server, or are markup.
_LEFT_OUT = re.compile(
    r"dislock/(cli/usage|protocol/(statements|records|questions|schema)|journal/(style|timeline|metrics)|redaction|_version)\.py"
)
_SQL = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|SET|WITH|WHERE|FROM|BEGIN|AND|ON|SAVEPOINT|RELEASE|ROLLBACK)\b"
    r"|\s(FROM|WHERE) |\sAS \w+$"
)
#: What nobody sees: it tells a programmer of a mistake, or it is dropped because the end was asked for.
_UNSEEN = ("raise AssertionError(", "raise AttributeError(", "Failure('asked to leave'")
#: A pattern that matches messages of other programs.
_PATTERN = re.compile(r"\\[sw.]|: \+|\)\?|\.\*|\[A-Z|\||^[A-Z ]+$|\]\|")


def parts() -> dict[str, str]:
    """The texts of each heading, as a Markdown list."""
    found: dict[str, set[str]] = {name: set() for name in PARTS}
    for package in ("dislock", "pg_advisory_lock"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            if not _LEFT_OUT.fullmatch(module):
                part = next(name for name, starts in PARTS.items() if module.startswith(starts))
                tree = ast.parse(path.read_text())
                raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
                for part_of_tree in raised if module in _TABLES else [tree]:
                    found[part].update(texts(part_of_tree))
    return {
        name: "".join(
            f"- {_code(text)}\n" for text in sorted(of_part, key=lambda text: (text.strip("… '\"").lower(), text))
        )
        for name, of_part in found.items()
    }


def texts(tree: ast.AST) -> Iterator[str]:
    """The prose in a module or a statement: three words or more, with ``…`` for inserted values."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            left_out |= {id(each.value) for each in node.body if isinstance(each, ast.Expr)}
        elif isinstance(node, (ast.Raise, ast.Call)) and ast.unparse(node).startswith(_UNSEEN):
            left_out.add(id(node))
    for text in _strings(tree, left_out):
        line = " ".join(text.split())
        words = [word for word in line.split() if re.search(r"[^\W\d_]", word)]
        if (
            len(words) > 1
            and len(line.split()) > 2
            and not _SQL.search(line)
            and not _PATTERN.search(line)
            and "<" not in line
        ):
            yield line


def _strings(node: ast.AST, left_out: set[int]) -> Iterator[str]:
    if id(node) in left_out:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.sub(r"%\(?\w*\)?[sdr]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                yield from _strings(each, left_out)
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child, left_out)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
