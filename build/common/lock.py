"""Resolves what goes into the artifacts, and writes the lock files with the hash of each file that may be used.

Written are zipapp/packages.lock, zipapp/natives.lock and common/tools.lock; folder/folder.lock is kept by hand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build.common.tools import BUILD, ROOT, make_environment, pip
from build.zipapp.natives import PLATFORMS, PYTHONS, download

TOOLS = ("pip", "shiv", "hatchling")
# Not in the file: for 24 platforms it does not fit, so `pg_advisory_lock.aio` comes with pip only.
LEFT_OUT = {"greenlet", "dislock"}
NATIVES = "psycopg-binary"


def main() -> None:
    """Markers are evaluated by the Python that runs pip, so it must be the oldest one that the artifact supports."""
    if sys.version_info[:2] != (3, 10):
        python = os.environ.get("DISLOCK_LOCK_PYTHON") or shutil.which("python3.10")
        if not python:
            sys.exit("build/lock: python3.10 is needed, on PATH or named by DISLOCK_LOCK_PYTHON")
        if subprocess.run(
            [python, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 10))"], check=False
        ).returncode:
            sys.exit(f"build/lock: {python} is no CPython 3.10")
        os.execv(python, [python, *sys.argv])
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make_environment(work / "venv")
        python = str(work / "venv" / "bin" / "python")
        pip(python, "install", "--upgrade", "pip")
        found = resolve(python, work, "--platform", PLATFORMS["glibc-x86_64"][0], str(ROOT))
        natives = f"{NATIVES}=={found.pop(NATIVES)}"
        write("zipapp/packages.lock", pure(python, work, {n: v for n, v in found.items() if n not in LEFT_OUT}))
        write("common/tools.lock", pure(python, work, resolve(python, work, "--platform", "any", *TOOLS)))
        libpq = libpq_version(python, work / "asked", natives)
        write("zipapp/natives.lock", {natives: native_hashes(python, work, natives)}, f"# libpq {libpq}")


def resolve(python: str, work: Path, *arguments: str) -> dict[str, str]:
    """Name and version of everything that the requirements want."""
    report = work / "report.json"
    pip(python, "install", "--dry-run", "--ignore-installed", "--report", str(report), "--target", str(work / "none"),
        "--only-binary", ":all:", "--python-version", "3.10", *arguments)  # fmt: skip
    installs = json.loads(report.read_text())["install"]
    return {i["metadata"]["name"].lower().replace("_", "-"): i["metadata"]["version"] for i in installs}


def pure(python: str, work: Path, wanted: dict[str, str]) -> dict[str, list[str]]:
    """The pure-Python wheel of each: it fits every host, and SQLAlchemy's works without its compiled parts."""
    hashes = {}
    for name, version in sorted(wanted.items()):
        folder = work / f"pure-{name}"
        pip(python, "download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.10", "--platform", "any",
            "--dest", str(folder), f"{name}=={version}")  # fmt: skip
        hashes[f"{name}=={version}"] = [digest(file) for file in folder.iterdir()]
    return hashes


def native_hashes(python: str, work: Path, requirement: str) -> list[str]:
    def one(platform: str, version: str) -> str:
        folder = work / f"{platform}-{version}"
        return digest(download(python, folder, platform, version, requirement))

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, *zip(*((p, v) for p in PLATFORMS for v in PYTHONS), strict=True)))


def libpq_version(python: str, folder: Path, natives: str) -> str:
    """What the libpq in this platform's wheel says of itself; one release of psycopg-binary has the same in each."""
    pip(python, "install", "--target", str(folder), natives, natives.replace(NATIVES, "psycopg"))
    ask = "import psycopg; print('{}.{}'.format(*divmod(psycopg.pq.version(), 10000)))"
    environment = {"PYTHONPATH": str(folder), "PSYCOPG_IMPL": "binary"}
    return subprocess.run(
        [python, "-c", ask], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write(name: str, hashes: dict[str, list[str]], *remarks: str) -> None:
    lines = ["# Written by build/lock; not edited by hand.", *remarks]
    for requirement, files in hashes.items():
        lines.append(requirement + "".join(f" \\\n    --hash=sha256:{file}" for file in sorted(set(files))))
    (BUILD / name).write_text("\n".join(lines) + "\n")
    print(f"{name}: {', '.join(hashes)}")
