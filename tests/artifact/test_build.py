"""What the build makes, and that it makes the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from ci.environments import ROOT
from tests.artifact.pythons import interpreters
from tests.artifact.support import NOBODY
from tests.support.need import need

PRODUCTS = ("dislock.pyz", "dislock.cdx.json", "SHA256SUMS")


def checkout(place: Path) -> Path:
    """A copy of what is tracked, with this checkout's downloads, so that no test depends on the network twice."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in (os.fsdecode(name) for name in names if name):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    if (ROOT / ".cache" / "natives").is_dir():
        shutil.copytree(ROOT / ".cache" / "natives", place / ".cache" / "natives")
    return place


@pytest.mark.slow
@pytest.mark.skipif("os.geteuid() != 0", reason="needs root to build as another user")
def test_two_folders_umasks_users_and_pythons_make_the_same_bytes(open_folder: Path) -> None:
    made = []
    # Somebody may be at work on this one meanwhile.
    original = checkout(open_folder / "original")
    for name, version, umask, uid in (("a", "3.11", 0o022, None), ("other folder/b", "3.12", 0o077, NOBODY)):
        need(version in interpreters(), f"CPython {version}: not found on PATH or in pyenv")
        python = readable(interpreters()[version].path, open_folder)
        place = open_folder / name
        shutil.copytree(original, place)
        if uid is not None:
            subprocess.run(["chown", "-R", f"{uid}:{uid}", str(place)], check=True)
            for path in place.rglob("*"):
                path.chmod(path.stat().st_mode & 0o700)
        environ = {"HOME": str(place), "TZ": "Asia/Tokyo" if uid else "UTC"}
        if not Path(python).samefile(interpreters()[version].path):
            # The copy finds its modules by itself, but not its shared library.
            environ["LD_LIBRARY_PATH"] = str(Path(python).parents[1] / "lib")
        done = subprocess.run(
            [python, str(place / "build" / "pyz")],
            cwd="/", umask=umask, user=uid, group=uid, env={**os.environ, **environ},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append(place / "dist")
    for product in PRODUCTS:
        assert (made[0] / product).read_bytes() == (made[1] / product).read_bytes(), product


def readable(python: str, folder: Path) -> str:
    """An interpreter that another account can run: one below root's home is copied."""
    if all(parent.stat().st_mode & 0o001 for parent in Path(python).resolve().parents):
        return python
    home = Path(python).resolve().parents[1]
    copy = folder / f"python-{home.name}"
    if not copy.exists():
        ignored = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "config-*")
        shutil.copytree(home, copy, symlinks=True, ignore=ignored)
    return str(copy / "bin" / Path(python).resolve().name)


def test_the_checksums_are_those_of_the_files(pyz: Path) -> None:
    dist = Path(os.environ.get("DISLOCK_TEST_PYZ", ROOT / "dist" / "dislock.pyz")).parent
    lines = [line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} >= {"dislock.pyz", "dislock.cdx.json"}
    for digest, name in lines:
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_the_bill_of_materials_names_what_is_bundled(pyz: Path) -> None:
    dist = Path(os.environ.get("DISLOCK_TEST_PYZ", ROOT / "dist" / "dislock.pyz")).parent
    document = json.loads((dist / "dislock.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    content = hashlib.sha256(pyz.read_bytes()).hexdigest()
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": content}]
    components = document["components"]
    assert len({c["bom-ref"] for c in components}) == len(components)
    purls = {c.get("purl", "") for c in components}
    for wanted in (
        *("dislock", "psycopg", "psycopg-binary", "croniter", "python-dateutil", "six", "sqlalchemy"),
        *("typing-extensions", "tzdata"),
    ):
        assert any(re.fullmatch(rf"pkg:pypi/{wanted}@\d[\w.]*", purl) for purl in purls), wanted
    for wanted in ("openssl", "postgresql", "krb5", "cyrus-sasl"):
        assert any(re.fullmatch(rf"pkg:generic/{wanted}@\d+[\w.]*", purl) for purl in purls), wanted
    # Each library in the file is one of the components, under its own hash.
    hashes = {h["content"] for c in components for h in c.get("hashes", [])}
    with zipfile.ZipFile(pyz) as archive:
        libraries = [name for name in archive.namelist() if "/psycopg_binary.libs/" in name]
        assert len(libraries) > 40
        for name in libraries:
            assert hashlib.sha256(archive.read(name)).hexdigest() in hashes, name


def test_nothing_of_the_builder_is_in_it(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        names = archive.namelist()
        assert not [
            n
            for n in names
            if n.endswith((".pyc", "direct_url.json", "RECORD"))
            or "/bin/" in n
            or n.startswith("site-packages/greenlet")
        ]
        assert len(names) == len(set(names))
        for member in archive.infolist():
            assert member.date_time == (1980, 1, 1, 0, 0, 0)
            if not member.filename.startswith("natives/"):
                content = archive.read(member)
                assert str(ROOT).encode() not in content, member.filename
        information = json.loads(archive.read("environment.json"))
    assert information["entry_point"] == "dislock.cli:entry"
    assert re.fullmatch(r"[0-9a-f]{64}", information["build_id"])


def test_it_is_small(pyz: Path) -> None:
    assert pyz.stat().st_size <= 27_000_000
