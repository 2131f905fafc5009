"""The interpreters of this machine: on PATH, in pyenv's folder, and those that DISLOCK_TEST_PYTHONS names."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

#: The versions that the project promises to run on.
SUPPORTED = tuple((3, minor) for minor in range(10, 16))

PROBE = """
import json, platform, sys, sysconfig
print(json.dumps([
    sys.executable, list(sys.version_info[:2]), platform.machine(),
    "musl" if "musl" in str(sysconfig.get_config_var("SOABI")) else "other",
]))
"""


@dataclass(frozen=True, order=True)
class Interpreter:
    version: tuple[int, int]
    machine: str
    libc: str
    """"musl", or "other": glibc, and whatever else is not musl."""
    path: str

    @property
    def native(self) -> bool:
        """Whether it is of the same kind as the interpreter that asks: not emulated, same C library."""
        own = "musl" if "musl" in str(sysconfig.get_config_var("SOABI")) else "other"
        return self.machine == platform.machine() and self.libc == own

    @property
    def name(self) -> str:
        words = [f"{self.version[0]}.{self.version[1]}"]
        if self.machine != platform.machine():
            words.append(self.machine)
        if self.libc == "musl":
            words.append("musl")
        return "-".join(words)


def named() -> list[str]:
    """The paths in DISLOCK_TEST_PYTHONS, separated by colons or blanks."""
    return [path for path in re.split(r"[:\s]+", os.environ.get("DISLOCK_TEST_PYTHONS", "")) if path]


def find() -> list[Interpreter]:
    """One supported interpreter of each version, machine and C library, sorted by these; the first found counts."""
    found: dict[tuple[object, ...], Interpreter] = {}
    for path in _candidates():
        interpreter = probe(path)
        if interpreter is not None and interpreter.version in SUPPORTED:
            found.setdefault((interpreter.version, interpreter.machine, interpreter.libc), interpreter)
    return sorted(found.values())


def probe(path: str) -> Interpreter | None:
    """What the interpreter says of itself; None where it does not start."""
    try:
        done = subprocess.run(
            [path, "-E", "-s", "-c", PROBE], capture_output=True, text=True, timeout=60, check=True, cwd="/"
        )
        executable, version, machine, libc = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter((version[0], version[1]), machine, libc, executable)


def _candidates() -> list[str]:
    names = [f"python{major}.{minor}" for major, minor in SUPPORTED] + ["python3"]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    paths = [folder / name for name in names for folder in folders]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path(os.path.expanduser("~")) / ".pyenv")  # noqa: PTH111 - Path.home raises without HOME
    paths += sorted((pyenv / "versions").glob("3.*/bin/python"))
    # pyenv's shims stand for the versions found above, or fail.
    real = [str(path) for path in paths if os.access(path, os.X_OK) and path.parent != pyenv / "shims"]
    return list(dict.fromkeys([*named(), *real]))
