"""What the product is measured against: each peer by its version, in an environment of its own below .cache.

Peers are black boxes, used as their own documents say. What several of them need is installed in the same versions for
all, those of the one file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / ".cache" / "benchmarks"
PYZ = ROOT / "dist" / "dislock.pyz"

#: Environments of peers, and what is in them.
PEERS = {
    "shiv": ("shiv==1.0.8",),
    "published": ("dislock==0.1.0",),
    "published-advisory": ("pg-advisory-lock==0.1.0", "psycopg[binary]"),
    "libraries": (
        "sqlalchemy-dlock==0.9.0",
        "PALs==0.4.0",
        "python-redis-lock==4.0.1",
        "redis==8.1.0",
        "psycopg[binary]",
        "psycopg2-binary==2.9.13",
    ),
}
#: For the product's own environment: the drivers of its advisory locks.
DRIVERS = ("psycopg2-binary==2.9.13", "asyncpg>=0.29", "pg8000>=1.31", "greenlet>=3")


def programs(name: str) -> Path:
    """The programs of a peer's environment, which is made if it is missing or of other versions."""
    return _environment(STORE / name, PEERS[name])


def product() -> Path:
    """The programs of an environment with this checkout as pip installs it, anew each time."""
    folder = STORE / "product"
    found = _environment(folder, (*_locked(), *DRIVERS))
    _pip(folder, "--no-deps", "--force-reinstall", str(ROOT))
    return found


def _environment(folder: Path, requirements: tuple[str, ...]) -> Path:
    locked = _locked()
    wanted = "\n".join([sys.version, *requirements, *locked])
    mark = folder / "made-of"
    if not (mark.exists() and mark.read_text() == wanted):
        print(f"making {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(locked) + "\n")
        _pip(folder, "-c", str(constraints), *requirements)
        mark.write_text(wanted)
    return folder / "bin"


def _pip(folder: Path, *arguments: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    # Away from the checkout, where a package of that name would be found installed.
    subprocess.run([*pip, *arguments], check=True, cwd=folder)


def _locked() -> tuple[str, ...]:
    text = "".join((ROOT / "build" / "zipapp" / name).read_text() for name in ("packages.lock", "natives.lock"))
    return tuple(re.findall(r"(?m)^(\S+==\S+)", text))
