"""psycopg's binary wheels: one for each CPython, C library and machine that the file supports."""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyz_tools import CACHE, HERE, pip

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
# The names that bootstrap/start.py gives to platforms, and the tags that their wheels may have, the most portable first.
TAGS = {"glibc": ("manylinux2014", "manylinux_2_28"), "musl": ("musllinux_1_2",)}
PLATFORMS = {
    f"{libc}-{machine}": [f"{tag}_{machine}" for tag in tags] for libc, tags in TAGS.items() for machine in ("x86_64", "aarch64")
}


def download(python: Path | str, folder: Path, platform: str, version: str, *requirement: str) -> Path:
    """The wheel for one platform and CPython."""
    tags = [argument for tag in PLATFORMS[platform] for argument in ("--platform", tag)]
    pip(python, "download", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", version,
        "--abi", f"cp{version.replace('.', '')}", *tags, "--dest", str(folder), *requirement)  # fmt: skip
    [wheel] = folder.glob("*.whl")
    return wheel


def wheels() -> dict[tuple[str, str], Path]:
    """All of them by platform and version, each checked against natives.lock; kept for the next build."""
    lock = HERE / "natives.lock"
    allowed = set(re.findall(r"sha256:([0-9a-f]{64})", lock.read_text()))
    store = CACHE / "natives"

    def one(pair: tuple[str, str]) -> Path:
        folder = store / f"{pair[0]}-{pair[1]}"
        kept = [wheel for wheel in folder.glob("*.whl") if hashlib.sha256(wheel.read_bytes()).hexdigest() in allowed]
        if len(kept) == 1:
            return kept[0]
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
        return download(sys.executable, folder, *pair, "--require-hashes", "-r", str(lock))

    pairs = [(platform, version) for platform in PLATFORMS for version in PYTHONS]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(pairs, pool.map(one, pairs), strict=True))


def members(found: dict[tuple[str, str], Path]) -> Iterator[tuple[str, bytes]]:
    """What goes into the archive, by name there.

    The bundled libraries of one platform are the same in each wheel and are kept once. An extension's own name is no guide
    (for CPython 3.10, musl's is called like glibc's), so each lies in a folder for its Python, under a name that every Python takes.
    """
    seen: dict[str, bytes] = {}
    for (platform, version), wheel in found.items():
        tag = f"cpython-{version.replace('.', '')}"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                folder, _, file = name.partition("/")
                if folder == "psycopg_binary.libs" and file:
                    target = f"natives/{platform}/psycopg_binary.libs/{file}"
                elif folder == "psycopg_binary" and file.endswith(".so"):
                    target = f"natives/{platform}/{tag}/{file.partition('.')[0]}.so"
                elif folder == "psycopg_binary" and file.endswith(".py"):
                    target = f"site-packages/{name}"
                elif folder.endswith(".dist-info") and (file == "METADATA" or file.startswith("licenses/")) and file[-1] != "/":
                    target = f"site-packages/{name}"
                else:
                    continue
                content = archive.read(name)
                if seen.setdefault(target, content) != content:
                    sys.exit(f"{wheel.name}: {name} differs from the one in another wheel")
    yield from seen.items()
