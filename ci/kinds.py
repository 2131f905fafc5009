"""The kinds of tests: what each one runs, and what this machine lacks for it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci import pythons
from ci.environments import ROOT, CannotMake, Environment
from ci.running import LOGS, Overdue, explain, run, shown
from ci.tally import Tally, read_junit

#: The folders under tests/, in the order in which they run: what fails soonest comes first.
FOLDERS = ("unit", "integration", "simulation", "faults", "artifact", "image")
KINDS = ("lint", "types", *FOLDERS, "demo", "minimum", "pythons")
FAST = ("lint", "types", "unit", "integration", "simulation")
LIMIT_SECONDS = 1500.0
#: A test that hangs fails, and the others go on.
TEST_SECONDS = 180
#: Tests against a server mostly wait, so more of them than processors run at once. Those of faults and artifacts load
#: the machine or measure time, and run one after another.
AT_ONCE = {"integration": 4}
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
    fast: bool
    pytest: tuple[str, ...]


def main_environment() -> Environment:
    return Environment(".venv", sys.executable, ("--editable", ".", "--group", "dev"))


def outcomes(kind: str, options: Options) -> Iterator[Outcome]:
    """Runs a kind; most have one outcome, some one for each interpreter."""
    special: dict[str, Callable[[Options], Iterator[Outcome]]] = {
        "lint": _lint,
        "types": _types,
        "image": _image,
        "demo": _demo,
        "minimum": _minimum,
        "pythons": _pythons,
    }
    if kind in special:
        yield from special[kind](options)
    else:
        yield from _folder(kind, main_environment().interpreter, options)


def _lint(_: Options) -> Iterator[Outcome]:
    ruff = [str(main_environment().interpreter), "-m", "ruff"]
    rules = _check("lint", [*ruff, "check", "--output-format=concise", "."])
    yield rules if rules.trouble else _check("lint", [*ruff, "format", "--check", "."])


def _types(_: Options) -> Iterator[Outcome]:
    yield _check("types", [str(main_environment().interpreter), "-m", "mypy"])


def _check(name: str, command: Sequence[str]) -> Outcome:
    try:
        code, log = run(name, command, LIMIT_SECONDS)
    except Overdue as overdue:
        return Outcome(name, Tally(failed=1), trouble=str(overdue))
    return Outcome(name, Tally(failed=1), trouble=explain(log)) if code else Outcome(name, Tally(passed=1))


def _folder(kind: str, python: Path, options: Options, label: str = "") -> Iterator[Outcome]:
    if any((ROOT / "tests" / kind).rglob("test_*.py")):
        yield _pytest(label or kind, python, [f"tests/{kind}"], options)


def _pytest(name: str, python: Path, folders: Sequence[str], options: Options) -> Outcome:
    report = LOGS / f"{name}-{os.getpid()}.xml"
    selection = ["-m", "not slow"] if options.fast else []
    at_once = max(AT_ONCE.get(Path(folder).name, 0) for folder in folders)
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
    try:
        code, log = run(name, command, LIMIT_SECONDS)
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
        else:
            yield from _folder("image", python, options)


def _demo(_: Options) -> Iterator[Outcome]:
    yield _check("demo", ["build/demo"])


def _minimum(options: Options) -> Iterator[Outcome]:
    """The oldest dependencies that the metadata allows, on the oldest Python."""
    oldest = next((p for p in pythons.find() if p.native and p.version == pythons.SUPPORTED[0]), None)
    if oldest is None:
        yield Outcome("minimum", Tally(), lack=f"{_version(pythons.SUPPORTED[0])} is not on this machine")
        return
    floors = tuple(floors_of((ROOT / "pyproject.toml").read_text()))
    yield from _other("minimum", Environment(".venv-minimum", oldest.path, (*_FOR_TESTS, *floors)), options)


def _pythons(options: Options) -> Iterator[Outcome]:
    """The oldest and the newest other Python; the oldest one also gets the oldest series of SQLAlchemy."""
    found = {p.version: p for p in pythons.find() if p.native}
    for version in pythons.SUPPORTED:
        if version not in found:
            where = "not found on PATH, in pyenv or in DISLOCK_TEST_PYTHONS"
            yield Outcome(f"python{version[0]}.{version[1]}", Tally(), lack=where)
    own = pythons.probe(str(main_environment().interpreter))
    others = [p for version, p in sorted(found.items()) if own is None or version != own.version]
    for other in dict.fromkeys([*others[:1], *others[-1:]]):
        yield from _other(f"python{other.name}", Environment(f".venv-{other.name}", other.path, _FOR_TESTS), options)


_FOR_TESTS = ("--editable", ".", "--group", "test")


def _other(name: str, environment: Environment, options: Options) -> Iterator[Outcome]:
    try:
        environment.make(installer=main_environment().interpreter)
    except CannotMake as failure:
        yield Outcome(name, Tally(failed=1), trouble=str(failure))
        return
    folders = [f"tests/{kind}" for kind in ("unit", "integration") if (ROOT / "tests" / kind).is_dir()]
    yield _pytest(name, environment.interpreter, folders, Options(fast=True, pytest=options.pytest))


def floors_of(pyproject: str) -> list[str]:
    """The lower bounds of ``[project] dependencies``, each as the one version to install."""
    block = re.search(r"(?ms)^dependencies = \[\n(.*?)^\]", pyproject)
    if block is None:
        raise CannotMake("pyproject.toml has no list of dependencies")
    return [f"{name}=={version}" for name, version in re.findall(r'"([^">]+)>=([^",;]+)"', block[1])]


def _version(version: tuple[int, int]) -> str:
    return f"CPython {version[0]}.{version[1]}"
