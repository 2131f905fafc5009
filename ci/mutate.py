"""`ci/mutate`: breaks the rules of dislock/protocol/ one at a time, and lists the breaks that no cheap test notices.

A mutant is a copy of the checkout with one small change: a comparison that is off by one, a sum that is a difference, a
statement that is missing. The unit tests and the simulation run on it. A mutant that passes both is alive: either the
change makes no difference, or a rule has no test.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

from ci.environments import ROOT, CannotMake, clean_environ
from ci.kinds import main_environment

RULES, RULES_TESTED = "dislock/protocol", "tests/unit/protocol"
#: What the unit tests import and read.
COPIED = ("dislock", "pg_advisory_lock", "benchmarks", "build", "ci", "docs", "examples", "tests", "pyproject.toml")
UNIT = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
#: What else rests on the rules.
FURTHER = (
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").glob("test_*.py")),
    "tests/unit/drivers",
    "tests/unit/journal",
)
#: A mutant may turn in a circle, or wait for ever. Unbroken, the tests take a few seconds of a processor.
PROCESSOR_SECONDS, LIMIT_SECONDS = 30, 300.0


def tests_of(module: str) -> dict[str, tuple[str, ...]]:
    """In the order in which they run: what is quick and notices most comes first."""
    own = sorted(str(path.relative_to(ROOT)) for path in (ROOT / RULES_TESTED).glob(f"test_{module}*.py"))
    return {
        "unit": (*UNIT, *own, RULES_TESTED),
        "simulation": ("-m", "tests.simulation", "0", "--count", "2000"),
        "further unit": (*UNIT, *FURTHER),
    }


COMPARED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    start: int
    end: int
    """Offsets in the file's UTF-8 text."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.old.split())}  ->  {self.new}"

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every small change of a module that this tool knows how to make. Texts and type annotations are left alone."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found = []
    for node, replacement in _changes(ast.parse(source)):
        start = offsets[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(path, node.lineno, start, end, source.encode()[start:end].decode(), replacement))
    return found


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.expr():
            for changed in _changed(node):
                yield node, f"({ast.unparse(changed)})"
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.Expr() | ast.Break() | ast.Continue():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute()]) | ast.AugAssign(target=ast.Attribute()):
            yield node, "pass"
        case (
            ast.If(test=ast.Name() | ast.Attribute() | ast.NamedExpr() as test)
            | ast.While(test=ast.Name() | ast.Attribute() | ast.NamedExpr() as test)
        ):
            yield test, f"(not ({ast.unparse(test)}))"
    for child in _children(node):
        yield from _changes(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            # The parts of an f-string are a text for people; `if TYPE_CHECKING` is for the type checker.
            type_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and not type_only:
                yield child


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in COMPARED:
            yield ast.Compare(left, [COMPARED[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED and not _joins_texts(node):
            yield ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLED:
            yield ast.Call(ast.Name(CALLED[name]), args, keywords)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)


def _joins_texts(node: ast.BinOp) -> bool:
    """Putting texts together has no opposite."""
    return any(_is_text(side) for side in (node.left, node.right))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class Bench:
    """A copy of the checkout in which one mutant after the other is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(main_environment().interpreter)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, folder / name)
        # With a hash of its source: by time and size, the bytecode of two mutants of one second would look the same.
        compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def killer(self, mutant: Mutant | None) -> str:
        """The test that notices the mutant (None: the unchanged rules); empty if none does."""
        if mutant is None:
            return self._noticed("")
        path = self.folder / mutant.path
        text = path.read_bytes()
        path.write_bytes(mutant.apply(text))
        try:
            return self._noticed(path.stem)
        finally:
            path.write_bytes(text)

    def _noticed(self, module: str) -> str:
        return next(filter(None, (self._failure(*tests) for tests in tests_of(module).items())), "")

    def _failure(self, kind: str, arguments: Sequence[str]) -> str:
        """What fails in these tests; empty if they pass."""
        with (self.folder / "output").open("w+") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'ulimit -t {PROCESSOR_SECONDS} && exec "$@"', "sh", self.python, *arguments],
                cwd=self.folder,
                env=clean_environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                if process.wait(LIMIT_SECONDS) == 0:
                    return ""
            except subprocess.TimeoutExpired:
                return f"{kind}: no end"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return failure_in(output.read()) or f"{kind}: exit code {process.returncode}"


def failure_in(output: str) -> str:
    """The test that pytest reports, or the promise that the simulation saw broken."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].partition(" - ")[0]
        if line.startswith("python -m tests.simulation "):
            return "simulation: " + line.partition("  # ")[2].partition(":")[0]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/mutate", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"as in {RULES}/MODULE.py; all of them by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant: a sample")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--all", action="store_true", help="also print which test noticed each of the others")
    given = parser.parse_args()
    names = given.modules or [path.stem for path in sorted((ROOT / RULES).glob("*.py")) if path.stem != "__init__"]
    paths = [f"{RULES}/{name}.py" for name in names]
    mutants = [mutant for path in paths for mutant in mutants_of(path, (ROOT / path).read_text())]
    mutants = mutants[:: given.every]
    if given.list:
        print(*mutants, sep="\n")
        return 0
    try:
        main_environment().make()
    except CannotMake as failure:
        print(failure, file=sys.stderr)
        return 2
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="mutants-", dir=cache) as folder:
        benches = [Bench(Path(folder) / str(number)) for number in range(given.jobs)]
        return _hunt(mutants, benches, tell_all=given.all)
    return 130


def _hunt(mutants: Sequence[Mutant], benches: Sequence[Bench], *, tell_all: bool) -> int:
    if noticed := benches[0].killer(None):
        print(f"this fails without any mutant: {noticed}", file=sys.stderr)
        return 2
    free: SimpleQueue[Bench] = SimpleQueue()
    for bench in benches:
        free.put(bench)

    def hunt(mutant: Mutant) -> str:
        bench = free.get()
        try:
            return bench.killer(mutant)
        finally:
            free.put(bench)

    alive = []
    pool = ThreadPoolExecutor(len(benches))
    try:
        for mutant, killer in zip(mutants, pool.map(hunt, mutants), strict=True):
            if not killer:
                alive.append(mutant)
                print(f"alive: {mutant}", flush=True)
            elif tell_all:
                print(f"noticed: {mutant}    by {killer}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"{len(mutants)} mutants, {len(alive)} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
