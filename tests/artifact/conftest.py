"""The built file, as a host has it: built once, and put into a folder that every account can read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.environments import ROOT
from tests.artifact.pythons import interpreters
from tests.artifact.support import Zipapp, links
from tests.support.need import need


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that other accounts can enter; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="artifact-"))
    folder.chmod(0o755)
    yield folder
    # What tidies up in the background may be at it too.
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pyz(open_folder: Path) -> Path:
    """dislock.pyz of this checkout, or the one that DISLOCK_TEST_PYZ names."""
    given = os.environ.get("DISLOCK_TEST_PYZ")
    if not given:
        subprocess.run([sys.executable, "build/pyz"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    place = open_folder / "dislock.pyz"
    shutil.copy(given or ROOT / "dist" / "dislock.pyz", place)
    place.chmod(0o755)
    return place


@pytest.fixture(scope="session")
def used_caches(open_folder: Path) -> Path:
    """One place for the caches of all tests that are not about them."""
    folder = open_folder / "caches"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def python() -> str:
    """One native interpreter, for what does not differ between them."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    need(version in interpreters(), f"no CPython {version} besides a virtual environment's")
    return interpreters()[version].path


@pytest.fixture
def zipapp(pyz: Path, python: str, open_folder: Path) -> Iterator[Zipapp]:
    """The file in an environment of its own: a PATH with one Python, and an empty place for the cache."""
    folder = Path(tempfile.mkdtemp(prefix="host ü-", dir=open_folder))
    folder.chmod(0o755)
    file = folder / "dislock.pyz"
    os.link(pyz, file)
    yield Zipapp(file, folder, {"PATH": links(folder / "bin", python), "XDG_CACHE_HOME": str(folder / "caches")})
    # What tidies up in the background may be at it too.
    shutil.rmtree(folder, ignore_errors=True)
