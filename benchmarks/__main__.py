"""`benchmarks/run`: chooses measurements, runs them one after another, and writes what they found."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.bench import Bench, machine, opened
from benchmarks.peers import ROOT, STORE
from benchmarks.tables import filled, has_place

#: In this order; a module of this package that has a function ``measure`` and is not named here comes after them.
ORDER = (
    "overhead",
    "ending",
    "idle",
    "rates",
    "transactions",
    "herd",
    "waiting",
    "many",
    "takeover",
    "capacity",
    "artifact",
)
RESULTS = STORE / "results.json"


def main(arguments: Sequence[str]) -> int:
    found = measurements()
    options = _parse(arguments, found)
    pages = {path: path.read_text() for path in options.write}
    began = time.monotonic()
    STORE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(quick=options.quick, rounds=options.rounds, folder=Path(folder)) as bench,
    ):
        Path(folder).chmod(0o755)
        where = machine()
        print(where, flush=True)
        for name in options.only or found:
            _measure(bench, name, found[name])
    _keep(bench, where)
    for path, page in pages.items():
        _write(bench, path, page, where)
    for word, lines in (("broken", bench.broken), ("beyond its limit", bench.beyond)):
        for line in lines:
            print(f"{word}: {line}")
    print(f"{len(bench.tables)} tables in {time.monotonic() - began:.0f} s, {len(bench.broken)} counts broken")
    return 1 if bench.broken or (options.check and bench.beyond) else 0


def measurements() -> dict[str, ModuleType]:
    """The modules of this package that measure something, by name."""
    folder = Path(__file__).parent
    names = [path.stem for path in folder.glob("*.py") if "\ndef measure(" in path.read_text()]
    ordered = sorted(names, key=lambda name: (_place(name), name))
    return {name: importlib.import_module(f"benchmarks.{name}") for name in ordered}


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _parse(arguments: Sequence[str], found: dict[str, ModuleType]) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<13} {_first_line(module)}" for name, module in found.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description="Measures the product beside what a user would pick instead, on a server of its own.",
        epilog=f"measurements:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME,...", type=_names, help="these measurements alone")
    parser.add_argument("--rounds", type=int, help="rounds of each measurement that has rounds")
    parser.add_argument("--quick", action="store_true", help="the smallest form, without peers: checks counts alone")
    parser.add_argument("--check", action="store_true", help="exit 1 where a figure is beyond its limit")
    parser.add_argument(
        "--write", metavar="PAGE", type=Path, action="append", default=[], help="fills the tables between its markers"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.only or () if name not in found]:
        parser.error(f"no such measurement: {unknown[0]}; there are {', '.join(found)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if missing := [path for path in options.write if not path.is_file()]:
        parser.error(f"no such page: {missing[0]}")
    if options.quick and options.write:
        parser.error("--quick measures nothing worth writing down")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


def _measure(bench: Bench, name: str, module: ModuleType) -> None:
    before, began = len(bench.tables), time.monotonic()
    print(f"{name}: {_first_line(module)}", file=sys.stderr, flush=True)
    module.measure(bench)
    for table in bench.tables[before:]:
        print(f"\n## {table.title}\n\n{table.markdown()}\n", flush=True)
    print(f"{name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _keep(bench: Bench, where: str) -> None:
    """The same figures for programs; those of measurements that were not run this time stay."""
    if bench.quick:
        return
    kept = json.loads(RESULTS.read_text())["tables"] if RESULTS.exists() else []
    new = {table.name: {**table.plain(), "machine": where} for table in bench.tables}
    tables = [table for table in kept if table["name"] not in new] + list(new.values())
    RESULTS.write_text(json.dumps({"tables": tables}, indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}")


def _write(bench: Bench, path: Path, page: str, where: str) -> None:
    written = []
    for table in bench.tables:
        if has_place(page, table.name):
            text = f"`{table.command}`, {time.strftime('%Y-%m-%d')}, {where}\n\n{table.markdown()}"
            page = filled(page, table.name, text)
            written.append(table.name)
    path.write_text(page)
    print(f"wrote {', '.join(written) or 'nothing'} to {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
