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

#: Those that the file is for, as far as there are some here; the last three are emulated, or have another C library.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13-aarch64", "3.13-musl", "3.13-aarch64-musl")


@functools.cache
def interpreters() -> dict[str, Interpreter]:
    """All of this machine, by names such as 3.11, 3.13-aarch64 and 3.13-musl."""
    return {found.name: found for found in find()}


def found(*, full: bool) -> list[str]:
    """All of the contract runs on the oldest and the newest native one, and on the others what may differ there.

    ``test_platforms.py`` names each one that is not there, once.
    """
    there = [name for name in PYTHONS if name in interpreters()]
    native = [name for name in there if interpreters()[name].native]
    ends = list(dict.fromkeys([*native[:1], *native[-1:]]))
    return ends if full else [name for name in there if name not in ends]


def on_each(metafunc: pytest.Metafunc, names: Sequence[str]) -> None:
    if "interpreter" in metafunc.fixturenames:
        metafunc.parametrize("interpreter", names, scope="session")


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
