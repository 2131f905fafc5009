"""The wings of the house, drawn from the imports: no arrow points up, and each wing does only what is its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ci import wings
from ci.environments import ROOT

PACKAGE = ROOT / wings.PACKAGE


@pytest.fixture(scope="module")
def ours() -> wings.House:
    return wings.House(PACKAGE)


def test_every_arrow_points_down(ours: wings.House) -> None:
    assert wings.faults(ours) == []


def test_every_module_says_first_what_it_is_responsible_for(ours: wings.House) -> None:
    first = {module: (ast.get_docstring(tree) or "").partition("\n")[0] for module, tree in ours.trees.items()}
    assert [module for module, line in first.items() if not line.endswith(".")] == []
    assert len(set(first.values())) == len(first), "two modules say the same"


# The reader itself, on a house that is in order but for one line.


@pytest.fixture
def house(tmp_path: Path) -> Path:
    package = tmp_path / "dislock"
    for module in ("cli/run", "locks", "request", "drivers/threads", "protocol/lease", "process/child", "errors"):
        path = package / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in (package, *(path for path in package.iterdir() if path.is_dir())):
        (folder / "__init__.py").touch()
    return package


def put(house: Path, module: str, text: str) -> list[str]:
    (house / f"{module}.py").write_text(text)
    return wings.faults(wings.House(house))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("cli/run", "from dislock.locks import x\nfrom dislock.process import child\nimport sys\nsys.exit(0)\nprint()"),
        ("cli/run", "from dislock import request\nfrom . import x"),
        ("locks", "import threading\nfrom dislock.request import Request"),
        ("drivers/threads", "import psycopg, threading\nfrom psycopg import sql\nfrom ..protocol import lease"),
        ("drivers/threads", "from dislock.drivers import x"),
        ("protocol/lease", "from datetime import datetime\nfrom dislock.errors import Loss\nclock = self.now()"),
        ("process/child", "import os, subprocess\nfrom .child2 import x\nos._exit(126)"),
    ],
)
def test_what_a_wing_may_do(house: Path, module: str, text: str) -> None:
    assert put(house, module, text) == []


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        (
            "errors",
            "from dislock.request import x",
            "dislock.errors:1 imports dislock.request: errors stands no higher",
        ),
        ("errors", "from dislock import request", "dislock.errors:1 imports dislock.request: errors stands no higher"),
        ("errors", "import dislock.request", "dislock.errors:1 imports dislock.request: errors stands no higher"),
        ("errors", "from . import request", "dislock.errors:1 imports dislock.request: errors stands no higher"),
        ("errors", "from dislock import Loss", "dislock.errors:1 imports dislock: errors stands no higher"),
        (
            "protocol/lease",
            "from ..drivers.threads import x",
            "dislock.protocol.lease:1 imports dislock.drivers.threads",
        ),
        ("protocol/lease", "def late():\n    from dislock.request import x", "dislock.protocol.lease:2 imports"),
        (
            "protocol/lease",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dislock.cli.run import X",
            "dislock.protocol.lease:3 imports dislock.cli.run: protocol stands no higher than cli",
        ),
        ("protocol/lease", "import os.path", "dislock.protocol.lease:1 imports os.path: protocol/ is pure"),
        ("protocol/lease", "from threading import Lock", "dislock.protocol.lease:1 imports threading.Lock"),
        ("protocol/lease", "now = datetime.now(timezone.utc)", "the clock that it is given"),
        (
            "protocol/lease",
            "from psycopg import sql",
            "dislock.protocol.lease:1 imports psycopg.sql: that is for drivers",
        ),
        ("locks", "import psycopg", "dislock.locks:1 imports psycopg: that is for drivers alone"),
        ("process/child", "from dislock.errors import Loss", "dislock.process.child:1 imports dislock.errors"),
        ("process/child", "import sys\nsys.exit(1)", "dislock.process.child:2 sys.exit"),
        ("request", "print('held')", "dislock.request:1 print: that is for __main__ and cli alone"),
        ("request", "raise SystemExit(1)", "dislock.request:1 SystemExit"),
        ("request", "raise SystemExit", "dislock.request:1 SystemExit"),
        ("request", "os._exit(1)", "dislock.request:1 os._exit"),
        ("attic", "x = 1\nfrom dislock import errors", "dislock.attic belongs to no wing"),
    ],
)
def test_what_a_wing_may_not_do(house: Path, module: str, text: str, fault: str) -> None:
    (found,) = put(house, module, text)
    assert fault in found


def test_a_module_of_no_wing_is_told_also_when_it_imports_nothing(house: Path) -> None:
    assert put(house, "attic", "x = 1") == ["dislock.attic belongs to no wing: add it to ROWS"]


def test_a_cycle_is_found_also_within_a_wing_and_for_types_alone(house: Path) -> None:
    (house / "protocol" / "steps.py").write_text("from dislock.protocol.plan import Plan")
    (house / "protocol" / "plan.py").write_text("from dislock.protocol import lease")
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dislock.protocol.steps import Step"
    lease, plan, steps = (f"dislock.protocol.{name}" for name in ("lease", "plan", "steps"))
    assert put(house, "protocol/lease", types) == [f"{lease} -> {steps} -> {plan} -> {lease}: a cycle"]


def test_the_picture_shows_each_wing_above_what_it_imports(house: Path) -> None:
    put(house, "cli/run", "from dislock.locks import x\nfrom dislock.errors import y")
    put(house, "locks", "from dislock.drivers import threads")
    lines = wings.picture(wings.House(house)).splitlines()
    assert lines[:4] == ["cli               -> locks, errors", "dislock", "locks             -> drivers", "request"]
