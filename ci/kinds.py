"""The kinds of tests: what each one runs, and what this machine lacks for it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ci import pythons
from ci.environments import ROOT, CannotMake, Environment
from ci.running import LOGS, Overdue, explain, run, shown
from ci.tally import Tally, read_junit

#: The folders under tests/, in the order in which they run: what fails soonest comes first.
FOLDERS = ("unit", "documents", "integration", "simulation", "faults", "artifact", "image")
#: What `ci/test` runs: the whole breadth, each thing once.
USUAL = ("lint", "types", *FOLDERS, "docs", "demo")
#: What `ci/test all` adds: other Pythons, what a machine seldom has, and figures.
DEPTH = ("minimum", "pythons", "cluster", "benchmarks")
KINDS = (*USUAL, *DEPTH)
FAST = ("lint", "types", "unit", "documents", "integration", "simulation")
#: Simulated histories; SIMULATION_HISTORIES asks for another number.
HISTORIES, MORE_HISTORIES = 2_000, 10_000
LIMIT_SECONDS = 1500.0
#: A test that hangs fails, and the others go on.
TEST_SECONDS = 180
#: How many tests of a kind run at once. Those against a server mostly wait, so there are more of them than processors.
AT_ONCE = {"unit": 2, "integration": 4, "contract": 4, "faults": 2, "artifact": 2}
#: pytest exits with this when it collected nothing.
NO_TESTS = 5


@dataclass(frozen=True)
class Outcome:
    name: str
    tally: Tally
    trouble: str = ""
    """What to print below the line of a kind that failed."""
    lack: str = ""
    """Why this machine cannot run it: one line."""


@dataclass(frozen=True)
class Options:
    fast: bool = False
    """Without the tests marked slow."""
    deep: bool = False
    """With as many simulated histories as CI runs."""
    pytest: tuple[str, ...] = ()


def main_environment() -> Environment:
    return Environment(".venv", sys.executable, ("--editable", ".", "--group", "dev"))


def outcomes(kind: str, options: Options) -> Iterator[Outcome]:
    """Runs a kind; most have one outcome, some one for each interpreter."""
    special: dict[str, Callable[[Options], Iterator[Outcome]]] = {
        "lint": _lint,
        "types": _types,
        "integration": _integration,
        "artifact": _artifact,
        "image": _image,
        "docs": _docs,
        "demo": _demo,
        "minimum": _minimum,
        "pythons": _pythons,
        "cluster": _cluster,
        "benchmarks": _benchmarks,
    }
    if kind in special:
        yield from special[kind](options)
    else:
        yield from _folder(kind, options)


def _lint(_: Options) -> Iterator[Outcome]:
    ruff = [str(main_environment().interpreter), "-m", "ruff"]
    rules = _check("lint", [*ruff, "check", "--output-format=concise", "."])
    yield rules if rules.trouble else _check("lint", [*ruff, "format", "--check", "."])


def _types(_: Options) -> Iterator[Outcome]:
    python = str(main_environment().interpreter)
    yield _check("types", [python, "-m", "mypy"])
    yield _check("snippets", [python, "-m", "ci.snippets"])


def _check(name: str, command: Sequence[str]) -> Outcome:
    try:
        code, log = run(name, command, LIMIT_SECONDS)
    except Overdue as overdue:
        return Outcome(name, Tally(failed=1), trouble=str(overdue))
    return Outcome(name, Tally(failed=1), trouble=explain(log)) if code else Outcome(name, Tally(passed=1))


def _folder(kind: str, options: Options) -> Iterator[Outcome]:
    if any((ROOT / "tests" / kind).rglob("test_*.py")):
        yield _pytest(kind, main_environment().interpreter, [f"tests/{kind}"], options)


def _integration(options: Options) -> Iterator[Outcome]:
    python = main_environment().interpreter
    if options.fast:
        yield _pytest("integration", python, ["tests/integration"], options)
        # What each artifact has to show on each Python.
        yield _pytest("contract", python, ["tests/contract"], replace(options, pytest=("-m", "short", *options.pytest)))
    else:
        yield _pytest("integration", python, ["tests/integration", "tests/contract"], options)


def _contract(artifact: str, options: Options, environ: Mapping[str, str], *more: str) -> Outcome:
    """The contract on something else than the installed command."""
    asked = replace(options, pytest=(f"--artifact={artifact}", *more, *options.pytest))
    return _pytest(f"contract-{artifact}", main_environment().interpreter, ["tests/contract"], asked, environ)


def _artifact(options: Options) -> Iterator[Outcome]:
    environ = {"DISLOCK_TEST_PYZ": os.environ.get("DISLOCK_TEST_PYZ", "")}
    if not environ["DISLOCK_TEST_PYZ"]:
        built = _check("artifact", ["build/pyz"])
        if built.trouble:
            yield built
            return
        environ["DISLOCK_TEST_PYZ"] = str(ROOT / "dist" / "dislock.pyz")
    yield _pytest("artifact", main_environment().interpreter, ["tests/artifact"], options, environ)
    yield _contract("zipapp", options, environ)


def _pytest(
    name: str, python: Path, folders: Sequence[str], options: Options, environ: Mapping[str, str] = MappingProxyType({})
) -> Outcome:
    report = LOGS / f"{name}-{os.getpid()}.xml"
    selection = ["-m", "not slow"] if options.fast else []
    at_once = max(AT_ONCE.get(Path(folder).parts[1], 0) for folder in folders)
    command = [
        *(str(python), "-m", "pytest", *folders, "-v", "--color=no", f"--junitxml={report}"),
        *(
            "-o",
            f"faulthandler_timeout={TEST_SECONDS // 2}",
            f"--timeout={TEST_SECONDS}",
            f"--numprocesses={at_once}",
            "--dist=worksteal",
            *selection,
            *options.pytest,
        ),
    ]
    histories = os.environ.get("SIMULATION_HISTORIES") or str(MORE_HISTORIES if options.deep else HISTORIES)
    try:
        code, log = run(name, command, LIMIT_SECONDS, {"SIMULATION_HISTORIES": histories, **environ})
        tally = read_junit(report) if report.exists() else Tally()
    except Overdue as overdue:
        return Outcome(name, Tally(failed=1), trouble=str(overdue))
    finally:
        report.unlink(missing_ok=True)
    if code in (0, NO_TESTS):
        return Outcome(name, tally)
    # It broke outside of any test: a wrong option, an interrupt, a crash of the interpreter.
    tally.failed = tally.failed or 1
    return Outcome(name, tally, trouble=f"{explain(log)}\n(whole log: {shown(log)}, exit code {code})")


def _image(options: Options) -> Iterator[Outcome]:
    python = main_environment().interpreter
    ping = "import docker; docker.from_env(timeout=10).ping()"
    if any((ROOT / "tests" / "image").rglob("test_*.py")):
        if run("engine", [str(python), "-c", ping], 60)[0]:
            yield Outcome("image", Tally(), lack="no Docker engine answers: start one, or set DOCKER_HOST")
            return
        yield from _folder("image", options)
        # Those that tests/image has just made.
        made = {"DISLOCK_TEST_IMAGES": "keep"}
        yield _contract("folder", options, made)
        # What test_usage.py tries ends before anything that a container could change.
        yield _contract("image", options, made, "--ignore=tests/contract/test_usage.py")


def _docs(_: Options) -> Iterator[Outcome]:
    if (ROOT / "build" / "docs").exists():
        yield _check("docs", ["build/docs"])


def _demo(_: Options) -> Iterator[Outcome]:
    yield _check("demo", ["build/demo"])


def _cluster(options: Options) -> Iterator[Outcome]:
    if not any((ROOT / "tests" / "cluster").rglob("test_*.py")):
        return
    if os.environ.get("DISLOCK_TEST_CLUSTER"):
        yield from _folder("cluster", options)
    else:
        lack = "DISLOCK_TEST_CLUSTER does not name the folder of a Patroni cluster (tests/cluster says how to make one)"
        yield Outcome("cluster", Tally(), lack=lack)


def _benchmarks(_: Options) -> Iterator[Outcome]:
    if not (ROOT / "dist" / "dislock.pyz").exists():
        built = _check("benchmarks", ["build/pyz"])
        if built.trouble:
            yield built
            return
    yield _check("benchmarks", ["benchmarks/run", "--quick"])


def _minimum(options: Options) -> Iterator[Outcome]:
    """The oldest dependencies that the metadata allows, on the oldest Python."""
    oldest = next((p for p in pythons.find() if p.native and p.version == pythons.SUPPORTED[0]), None)
    if oldest is None:
        yield Outcome("minimum", Tally(), lack=f"{_version(pythons.SUPPORTED[0])} is not on this machine")
        return
    floors = tuple(floors_of((ROOT / "pyproject.toml").read_text()))
    environment = Environment(".venv-minimum", oldest.path, (*_FOR_TESTS, *floors))
    yield from _other("minimum", environment, ("tests/unit", "tests/integration", "tests/contract"), options)


def _pythons(options: Options) -> Iterator[Outcome]:
    """What differs between Pythons, on the newest one; ``minimum`` has the oldest, and the artifact is run on all."""
    found = {p.version: p for p in pythons.find() if p.native}
    for version in pythons.SUPPORTED:
        if version not in found:
            where = "not found on PATH, in pyenv or in DISLOCK_TEST_PYTHONS"
            yield Outcome(f"python{version[0]}.{version[1]}", Tally(), lack=where)
    own = pythons.probe(str(main_environment().interpreter))
    if found and (own is None or max(found) > own.version):
        newest = found[max(found)]
        environment = Environment(f".venv-{newest.name}", newest.path, _FOR_TESTS)
        yield from _other(f"python{newest.name}", environment, VARYING, options)


#: Where Pythons differ: threads, event loops, forks, signals, and what the drivers of databases make of them. The
#: contract is not among them: the zipapp runs the whole of it on the newest Python.
VARYING = (
    "tests/unit",
    "tests/integration/advisory",
    "tests/integration/library",
    "tests/integration/process",
)
_FOR_TESTS = ("--editable", ".", "--group", "test")


def _other(name: str, environment: Environment, folders: Sequence[str], options: Options) -> Iterator[Outcome]:
    try:
        environment.make(installer=main_environment().interpreter)
    except CannotMake as failure:
        yield Outcome(name, Tally(failed=1), trouble=str(failure))
        return
    there = [folder for folder in folders if (ROOT / folder).is_dir()]
    yield _pytest(name, environment.interpreter, there, replace(options, fast=True))


def floors_of(pyproject: str) -> list[str]:
    """The lower bounds of ``[project] dependencies``, each as the one version to install."""
    block = re.search(r"(?ms)^dependencies = \[\n(.*?)^\]", pyproject)
    if block is None:
        raise CannotMake("pyproject.toml has no list of dependencies")
    return [f"{name}=={version}" for name, version in re.findall(r'"([^">]+)>=([^",;]+)"', block[1])]


def _version(version: tuple[int, int]) -> str:
    return f"CPython {version[0]}.{version[1]}"
