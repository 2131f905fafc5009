"""Resolves what goes into the artifacts, and writes the lock files with the hash of each file that may be used.

It writes zipapp/packages.lock, zipapp/natives.lock and common/tools.lock; folder/folder.lock is maintained by hand."""

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
# Not in the zipapp: greenlet for 24 platforms would be too large, so `pg_advisory_lock.aio` comes only with pip.
LEFT_OUT = {"greenlet", "dislock"}
NATIVES = "psycopg-binary"


def main() -> None:
    """Writes the lock files. pip evaluates markers for its own Python, so that must be the oldest supported one."""
    if sys.version_info[:2] != (3, 10):
        python = os.environ.get("DISLOCK_LOCK_PYTHON") or shutil.which("python3.10")
        if not python:
            sys.exit("build/lock: python3.10 is needed, on PATH or named by DISLOCK_LOCK_PYTHON")
        if subprocess.run(
            [python, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 10))"], check=False
        ).returncode:
            sys.exit(f"build/lock: {python} is not CPython 3.10")
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
    """Name and version of everything that the requirements need."""
    report = work / "report.json"
    pip(python, "install", "--dry-run", "--ignore-installed", "--report", str(report), "--target", str(work / "none"),
        "--only-binary", ":all:", "--python-version", "3.10", *arguments)  # fmt: skip
    installs = json.loads(report.read_text())["install"]
    return {i["metadata"]["name"].lower().replace("_", "-"): i["metadata"]["version"] for i in installs}


def pure(python: str, work: Path, wanted: dict[str, str]) -> dict[str, list[str]]:
    """The pure-Python wheel of each: it works on every host, and SQLAlchemy works without its compiled parts."""
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
    """The version of the libpq in this platform's wheel. All wheels of one release of psycopg-binary have the same."""
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
