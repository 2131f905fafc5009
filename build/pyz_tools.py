"""The tools that make the artifacts, at pinned versions, in an environment of their own beside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache"
# What PEP 441 archives can hold at the earliest; every time stamp in the artifacts is this one.
EPOCH = "315532800"


def run_with_tools(module: str) -> NoReturn:
    """Replace this process by `python MODULE.py ARGUMENTS` in the environment of tools.lock, made if need be."""
    if sys.version_info < (3, 10):  # noqa: UP036 - whoever builds is told, too
        sys.exit(f"{sys.argv[0]}: CPython 3.10 or newer is needed")
    python = tools()
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    os.execve(python, [str(python), str(HERE / f"{module}.py"), *sys.argv[1:]], environment)


def tools() -> Path:
    """The environment's interpreter."""
    lock = HERE / "tools.lock"
    stamp = hashlib.sha256(lock.read_bytes() + sys.version.encode() + os.fsencode(sys.base_prefix)).hexdigest()
    folder = CACHE / f"tools-{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".tools-lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not (folder / ".stamp").is_file() or (folder / ".stamp").read_text() != stamp:
            make_environment(folder)
            # Plain wheels only: nothing is built, so nothing of this machine gets in.
            pip(python, "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock))
            (folder / ".stamp").write_text(stamp)
    return python


def make_environment(folder: Path) -> None:
    # Debian keeps this module in a package of its own; what venv says without it is a traceback at whoever runs it.
    if find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} cannot make virtual environments here; on Debian and Ubuntu: apt install python3-venv"
        )
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{sys.executable} cannot make a virtual environment in {folder}:\n{done.stdout}{done.stderr}")


def pip(python: Path | str, command: str, *arguments: str) -> None:
    """pip, quiet unless it fails."""
    done = subprocess.run(
        [str(python), "-m", "pip", command, "--disable-pip-version-check", "--no-input", *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"pip {command} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
