"""``build/release`` in a clone of this repository: everything in one go, and only from a commit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image import engine


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    place = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(engine.ROOT), str(place)], check=True)
    (engine.ROOT / ".cache").mkdir(exist_ok=True)
    # Wheels that were downloaded before; their hashes are checked again.
    (place / ".cache").symlink_to(engine.ROOT / ".cache")
    return place


def release(clone: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "build" / "release"), "--output", str(output)]
    docker = str(Path(engine.client_program()).parent)
    environment = {**os.environ, **engine.BASES, "PATH": f"{docker}:{os.environ['PATH']}"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=engine.BUILD_SECONDS, check=False
    )


def test_everything_in_one_go(clone: Path, tmp_path: Path, built: None) -> None:
    output = tmp_path / "out"
    done = release(clone, output)
    assert done.returncode == 0, done.stderr[-2000:]
    names = {path.name for path in output.iterdir()}
    assert names >= {"SHA256SUMS", "dislock.pyz", "dislock.cdx.json"}
    assert names >= {"dislock-linux-x86_64.tar.gz", "dislock-linux-x86_64.cdx.json"}
    assert {Path(name).suffix for name in names} >= {".whl", ".gz"}
    lines = (line.split("  ") for line in (output / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in output.iterdir()
        if path.name != "SHA256SUMS"
    }
    bill = json.loads((output / "dislock-linux-x86_64.cdx.json").read_text())
    assert {"CPython", "psycopg", "certifi", "libc6"} <= {component["name"] for component in bill["components"]}
    again = release(clone, output)
    assert again.returncode == 1
    assert "is not empty" in again.stderr


def test_not_from_a_changed_checkout(clone: Path, tmp_path: Path) -> None:
    (clone / "LICENSE").write_text("free")
    done = release(clone, tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("build/release: the checkout differs from its commit")
    assert not (tmp_path / "out").exists()


def test_not_under_another_versions_tag(clone: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "-C", str(clone), "tag", "v999"], check=True)
    done = release(clone, tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("build/release: the commit is tagged v999, and ")
