"""psycopg's binary wheels: one for each CPython, C library and machine that the file supports."""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build.common.tools import BUILD, CACHE, pip

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
# The C libraries as place.py names them, and the tags that wheels may have, the most portable first.
TAGS = {"glibc": ("manylinux2014", "manylinux_2_28"), "musl": ("musllinux_1_2",)}
PLATFORMS = {
    f"{libc}-{machine}": [f"{tag}_{machine}" for tag in tags]
    for libc, tags in TAGS.items()
    for machine in ("x86_64", "aarch64")
}


LOCK = BUILD / "zipapp" / "natives.lock"
#: A platform's bill of materials, as the builder of its wheels wrote it.
BILL = "psycopg_binary.cdx.json"


def libpq_version() -> str:
    """The version of libpq in the wheels, which build/lock has stored."""
    found = re.search(r"^# libpq (\S+)$", LOCK.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def download(python: Path | str, folder: Path, platform: str, version: str, *requirement: str) -> Path:
    """The wheel for one platform and CPython."""
    tags = [argument for tag in PLATFORMS[platform] for argument in ("--platform", tag)]
    tags += ["--implementation", "cp", "--python-version", version, "--abi", f"cp{version.replace('.', '')}"]
    pip(python, "download", "--no-deps", "--only-binary", ":all:", *tags, "--dest", str(folder), *requirement)
    [wheel] = folder.glob("*.whl")
    return wheel


def wheels() -> dict[tuple[str, str], Path]:
    """All wheels by platform and version, each checked against natives.lock. They are kept for the next build."""
    allowed = set(re.findall(r"sha256:([0-9a-f]{64})", LOCK.read_text()))
    store = CACHE / "natives"

    def one(pair: tuple[str, str]) -> Path:
        folder = store / f"{pair[0]}-{pair[1]}"
        kept = [wheel for wheel in folder.glob("*.whl") if hashlib.sha256(wheel.read_bytes()).hexdigest() in allowed]
        if len(kept) == 1:
            return kept[0]
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
        return download(sys.executable, folder, *pair, "--require-hashes", "-r", str(LOCK))

    pairs = [(platform, version) for platform in PLATFORMS for version in PYTHONS]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(pairs, pool.map(one, pairs), strict=True))


def members(found: dict[tuple[str, str], Path]) -> Iterator[tuple[str, bytes]]:
    """What goes into the archive, by its name there.

    The bundled libraries of one platform are the same in each wheel, so they are stored once. The name of an extension
    does not identify it (for CPython 3.10, those for musl and glibc have the same name), so each is in a folder for its
    Python, under a name that every Python accepts.
    """
    seen: dict[str, bytes] = {}
    for (platform, version), wheel in found.items():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                target = place(name, f"natives/{platform}", f"cpython-{version.replace('.', '')}")
                if target and target.endswith(BILL) and target in seen:
                    continue  # it differs only in the name of its wheel
                if target and seen.setdefault(target, content := archive.read(name)) != content:
                    sys.exit(f"{wheel.name}: {name} differs from the one in another wheel")
    yield from seen.items()


def place(name: str, natives: str, python: str) -> str | None:
    """The place of a wheel's file in the archive; None: it is left out."""
    folder, _, file = name.partition("/")
    if not file or file.endswith("/"):
        return None
    if file.endswith(".cdx.json"):
        return f"{natives}/{BILL}"
    if folder == "psycopg_binary.libs":
        return f"{natives}/{name}"
    if folder == "psycopg_binary" and file.endswith(".so"):
        return f"{natives}/{python}/{file.partition('.')[0]}.so"
    wanted = (
        file == "METADATA" or file.startswith("licenses/") if folder.endswith(".dist-info") else file.endswith(".py")
    )
    return f"site-packages/{name}" if wanted else None
