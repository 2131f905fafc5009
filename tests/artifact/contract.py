"""The command line contract, on the file: the suite of ``tests/integration/cli``, with each interpreter in turn."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ci.pythons import Interpreter, find
from tests.artifact.support import links
from tests.support.contract import Dislock

#: All of the contract runs on these, and what depends on interpreter and platform on those, which are emulated in part.
FULL = ("3.10", "3.11", "3.12", "3.13")
SHORT = ("3.14", "3.15", "3.13-aarch64", "3.13-musl", "3.13-aarch64-musl")


@functools.cache
def interpreters() -> dict[str, Interpreter]:
    """All of this machine, by names such as 3.11, 3.13-aarch64 and 3.13-musl."""
    return {found.name: found for found in find()}


def on_each(metafunc: pytest.Metafunc, names: Sequence[str]) -> None:
    """Those that are there; ``test_platforms.py`` names each one that is not, once."""
    if "interpreter" in metafunc.fixturenames:
        metafunc.parametrize("interpreter", [name for name in names if name in interpreters()], scope="session")


@pytest.fixture
def dislock_command(pyz: Path) -> list[str]:
    return [str(pyz)]


@pytest.fixture
def bare(
    interpreter: str,
    dislock_command: list[str],
    open_folder: Path,
    used_caches: Path,
    tmp_path: Path,
) -> Iterator[Dislock]:
    """The file, with one Python on PATH and a place for its cache."""
    environment = {
        "PATH": links(open_folder / interpreter, interpreters()[interpreter].path),
        "XDG_CACHE_HOME": str(used_caches),
    }
    with closing(Dislock(dislock_command, "", tmp_path, environment)) as tested:
        yield tested
