"""Reads which module of dislock imports which, and says where that goes against the order of the wings.

`python -m ci.wings` prints the picture of the wings that docs/architecture.md shows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ci.environments import ROOT

PACKAGE = "dislock"
#: From top to bottom. A module imports from lower rows and from its own wing; wings of one row do not know each other.
ROWS = (
    ("__main__",),
    ("cli",),
    ("journal",),
    ("__init__",),
    ("testing",),
    ("aio", "locks", "command"),
    ("holding", "view"),
    ("request",),
    ("drivers",),
    ("protocol",),
    ("context",),
    ("process", "events", "greenlets"),
    ("errors",),
    ("redaction", "_version"),
)
_ROW = {name: number for number, row in enumerate(ROWS) for name in row}
#: Other people's modules, and the wings that alone may import them.
RESERVED = {"psycopg": ("drivers",), "sqlalchemy": ()}
#: What a pure rule has no use for.
IMPURE = ("asyncio", "multiprocessing", "os", "select", "signal", "socket", "subprocess", "threading", "time")
#: What only the wings at the top do.
_TOP: tuple[str, ...] = ("__main__", "cli")
ENDS = dict.fromkeys(("print", "exit", "quit", "sys.exit", "SystemExit"), _TOP)
#: A forked child that could not become its command must not come back.
ENDS["os._exit"] = (*_TOP, "process")
#: A protocol has the clock that it is given.
CLOCKS = ("datetime.now", "datetime.today", "datetime.utcnow", "date.today")
#: The command as a process knows nothing of locks: of this package it imports itself alone.
ALONE = ("process",)


@dataclass(frozen=True)
class Import:
    """One import; ``importer`` and ``imported`` are dotted names, and stand in ``line`` of the importer's file."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


class House:
    """The modules below a package's folder, and every import in them: inside functions and for types alone as well."""

    def __init__(self, package: Path) -> None:
        self.name = package.name
        self.trees = {_dotted(package, path): _parsed(path) for path in sorted(package.rglob("*.py"))}
        folders = {_dotted(package, path) for path in package.rglob("__init__.py")}
        found = [
            Import(module, _module(imported, self.trees), line)
            for module, tree in self.trees.items()
            for imported, line in _imported(tree, module if module in folders else module.rpartition(".")[0])
        ]
        self.imports = list(dict.fromkeys(found))

    def inner(self) -> list[Import]:
        """The imports of the package's own modules."""
        return [found for found in self.imports if found.imported in self.trees]


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _dotted(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, here: str) -> Iterator[tuple[str, int]]:
    """Dotted names and lines of the import statements, as if each name that they take were a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = here.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            for name in node.names:
                yield ".".join([*base, *([node.module] if node.module else []), name.name]), node.lineno


def _module(dotted: str, modules: Container[str]) -> str:
    """The module that a dotted name belongs to; a name of another package is left as it is."""
    name = dotted
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or dotted


def wing(module: str) -> str:
    """The wing of a module of the package: the package's own face is ``__init__``."""
    return module.split(".")[1] if "." in module else "__init__"


def faults(house: House) -> list[str]:
    """What goes against the order of the wings, one line each."""
    homeless = [f"{name} belongs to no wing: add it to ROWS" for name in house.trees if wing(name) not in _ROW]
    circles = [f"{' -> '.join(circle)}: a cycle" for circle in cycles(house)]
    return [*homeless, *_arrows_up(house), *_foreign(house), *_acts(house), *circles]


def _arrows_up(house: House) -> Iterator[str]:
    for found in house.inner():
        source, target = wing(found.importer), wing(found.imported)
        if source == target or source not in _ROW or target not in _ROW:
            continue
        if _ROW[target] <= _ROW[source]:
            yield f"{found}: {source} stands no higher than {target}"
        elif source in ALONE:
            yield f"{found}: {source}/ imports nothing of {house.name} but itself"


def _foreign(house: House) -> Iterator[str]:
    for found in house.imports:
        source, top = wing(found.importer), found.imported.split(".")[0]
        if source not in RESERVED.get(top, (source,)):
            yield f"{found}: that is for {' and '.join(RESERVED[top]) or 'no wing'} alone"
        if source == "protocol" and top in IMPURE:
            yield f"{found}: protocol/ is pure"


def _acts(house: House) -> Iterator[str]:
    """Where a module prints, exits or reads a clock, and its wing may not."""
    for module, tree in house.trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Call, ast.Raise)):
                continue
            done = node.func if isinstance(node, ast.Call) else node.exc
            name = ast.unparse(done) if isinstance(done, (ast.Name, ast.Attribute)) else ""
            if wing(module) not in ENDS.get(name, (wing(module),)):
                yield f"{module}:{node.lineno} {name}: that is for {' and '.join(ENDS[name])} alone"
            if name in CLOCKS and wing(module) == "protocol":
                yield f"{module}:{node.lineno} {name}: protocol/ has the clock that it is given"


def cycles(house: House) -> list[list[str]]:
    """The circles among modules, each once, from its alphabetically first module back to it."""
    after: dict[str, list[str]] = {}
    for found in house.inner():
        after.setdefault(found.importer, []).append(found.imported)
    circles = set()
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            circle = path[path.index(module) :]
            first = circle.index(min(circle))
            circles.add((*circle[first:], *circle[:first], circle[first]))
            return
        if module not in done:
            for imported in after.get(module, []):
                visit(imported, [*path, module])
            done.add(module)

    for module in sorted(after):
        visit(module, [])
    return [list(circle) for circle in sorted(circles)]


def arrows(house: House) -> dict[str, list[str]]:
    """For each wing that there is, the wings that it imports; both from top to bottom."""
    pairs = {(wing(found.importer), wing(found.imported)) for found in house.inner()}
    present = sorted({wing(module) for module in house.trees} & set(_ROW), key=list(_ROW).index)
    return {name: [other for other in present if other != name and (name, other) in pairs] for name in present}


def picture(house: House) -> str:
    """The wings from top to bottom; beside each, what it imports."""
    titles = {"__init__": house.name, "__main__": f"python -m {house.name}"}
    lines = []
    for name, targets in arrows(house).items():
        if name == "_version":
            continue
        named = ", ".join(titles.get(target, target) for target in targets if target != "_version")
        lines.append(f"{titles.get(name, name):<17} -> {named}" if named else titles.get(name, name))
    return "\n".join(lines)


def main() -> int:
    house = House(ROOT / PACKAGE)
    print(picture(house))
    found = faults(house)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
