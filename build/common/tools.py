"""The tools that make the artifacts, at pinned versions, in a separate environment in the checkout's cache."""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

BUILD = Path(__file__).resolve().parents[1]
ROOT = BUILD.parent
CACHE = ROOT / ".cache"
# The earliest time that a zip archive can store; every time stamp in the artifacts is this one.
EPOCH = "315532800"
#: The settings of pip that the caller decides: where packages come from, and how pip reaches them.
FOR_PIP = re.compile(
    r"(extra-)?index-url|find-links|no-index|cert|client-cert|trusted-host|proxy|keyring-provider"
    r"|timeout|default-timeout|retries|cache-dir|no-cache-dir|use-deprecated|use-feature"
)


def run_with_tools(module: str) -> NoReturn:
    """Replaces this process by `python -m MODULE ARGUMENTS` in the environment of tools.lock. Makes it if necessary."""
    if sys.version_info < (3, 10):  # noqa: UP036 - an older Python can run the build commands so far
        sys.exit(f"{sys.argv[0]}: CPython 3.10 or newer is needed")
    python = tools()
    theirs = re.compile("PYTHON.*|VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not theirs.fullmatch(name)}
    environment |= {"SOURCE_DATE_EPOCH": EPOCH, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)
    os.execve(python, [str(python), "-m", module, *sys.argv[1:]], environment)


def tools() -> Path:
    """The environment's interpreter."""
    lock = BUILD / "common" / "tools.lock"
    stamp = hashlib.sha256(lock.read_bytes() + sys.version.encode() + os.fsencode(sys.base_prefix)).hexdigest()
    folder = CACHE / f"tools-{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".tools-lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not (folder / ".stamp").is_file() or (folder / ".stamp").read_text() != stamp:
            make_environment(folder)
            # Only wheels: nothing is built, so nothing of this machine gets in.
            pip(python, "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock))
            (folder / ".stamp").write_text(stamp)
    return python


def make_environment(folder: Path) -> None:
    # Debian has this module in a separate package, and without it venv ends with a traceback.
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
    """Runs pip, without output unless it fails."""
    done = subprocess.run(
        [str(python), "-m", "pip", command, "--disable-pip-version-check", "--no-input", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=pip_environment(str(python)),
    )
    if done.returncode:
        sys.exit(f"pip {command} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


@functools.cache
def pip_environment(python: str) -> dict[str, str]:
    """The environment for pip. Of the caller's settings, in files and variables, only those in FOR_PIP are kept."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    # Section, option and value, such as global.index-url='https://…'.
    files = {name: ast.literal_eval(text) for name, text in re.findall(r"^\w+\.([\w-]+)=(.*)$", listed, re.MULTILINE)}
    variables = {name[4:].lower().replace("_", "-"): os.environ[name] for name in os.environ if name.startswith("PIP_")}
    kept = {name: value for name, value in (files | variables).items() if FOR_PIP.fullmatch(name)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {f"PIP_{name.upper().replace('-', '_')}": value for name, value in kept.items()}
    return environment | {"PIP_CONFIG_FILE": os.devnull}
