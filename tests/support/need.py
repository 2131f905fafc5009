"""The one way of saying that a test needs something which not every machine has."""

from __future__ import annotations

import shutil

import pytest

from ci import in_ci


def need(condition: object, reason: str) -> None:
    """Skips the test when the condition does not hold; with CI=true, where a skip would hide a hole, fails it.

    The reason says what is missing and how to get it: "no faketime library: apt install faketime".
    """
    if not condition:
        (pytest.fail if in_ci() else pytest.skip)(reason)


def need_program(name: str, package: str = "") -> str:
    """The path of a program on PATH; ``package`` is Debian's that has it."""
    path = shutil.which(name)
    need(path, f"no {name} on PATH: apt install {package or name}")
    assert path is not None
    return path
