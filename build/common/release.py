"""Makes all files that a release publishes: wheel, source distribution, zipapp, runtime archive, SBOMs, checksums.

They come from a copy of the commit, so no other file of this checkout gets in. The runtime archive comes from a build
of the image, and the published images are made from this archive, so all of them contain the same folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build.common.tools import ROOT


class CannotReleaseError(Exception):
    """Why there can be no release, in one sentence."""


def git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotReleaseError("no git on PATH; on Debian and Ubuntu: apt install git") from None
    if done.returncode:
        raise CannotReleaseError(f"git {arguments[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def run(*command: str | Path, **environment: str) -> None:
    """Runs a program that itself prints what it does and why it fails."""
    done = subprocess.run(command, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise CannotReleaseError(f"{' '.join(map(str, command[:2]))} failed: exit code {done.returncode}")


def check_commit() -> None:
    """Checks that the checkout is a commit, and that its tag, if it has one, names its version."""
    if changed := git("status", "--porcelain", "--untracked-files=no").strip():
        raise CannotReleaseError(f"the checkout differs from its commit:\n{changed}")
    found = re.search(r'__version__ = "(.+)"', git("show", "HEAD:dislock/_version.py"))
    assert found is not None
    tags = git("tag", "--points-at", "HEAD", "v*").split()
    if tags and f"v{found[1]}" not in tags:
        raise CannotReleaseError(f"the commit is tagged {', '.join(tags)}, and dislock/_version.py says {found[1]}")


def copy_commit(checkout: Path) -> None:
    packed = checkout.with_suffix(".tar")
    git("archive", "--output", str(packed), "HEAD")
    checkout.mkdir()
    run("tar", "-xf", packed, "-C", checkout)
    # Downloads are checked by their hashes, so the cache of other builds can be used.
    (ROOT / ".cache").mkdir(exist_ok=True)
    (checkout / ".cache").symlink_to(ROOT / ".cache")


def make_archive(checkout: Path, *, on_this_host: bool) -> None:
    if on_this_host:
        run(sys.executable, checkout / "build" / "runtime")
        return
    docker = shutil.which("docker")
    if docker is None:
        raise CannotReleaseError("no docker on PATH; --on-this-host takes this machine's Python and C library instead")
    options = ["--target=archive", f"--output={checkout / 'dist'}", "--network=host"]
    for name in ("BUILD_IMAGE", "BASE_IMAGE"):
        if name in os.environ:
            options.append(f"--build-arg={name}={os.environ[name]}")
    run(docker, "build", *options, checkout, DOCKER_BUILDKIT="1")


def add_bills(dist: Path) -> None:
    """Puts each archive's bill of materials beside it."""
    for archive in dist.glob("dislock-linux-*.tar.gz"):
        with tarfile.open(archive) as tar:
            bill = tar.extractfile("dislock/bill-of-materials.cdx.json")
            assert bill is not None
            archive.with_name(archive.name.replace(".tar.gz", ".cdx.json")).write_bytes(bill.read())


def add_checksums(dist: Path) -> None:
    names = sorted(path.name for path in dist.iterdir() if path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256((dist / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (dist / "SHA256SUMS").write_text("".join(lines))


def release(output: Path, *, on_this_host: bool) -> None:
    check_commit()
    if output.exists() and any(output.iterdir()):
        raise CannotReleaseError(f"{output} is not empty")
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch) / "checkout"
        copy_commit(checkout)
        for script in ("wheel", "pyz"):
            run(sys.executable, checkout / "build" / script)
        make_archive(checkout, on_this_host=on_this_host)
        add_bills(checkout / "dist")
        add_checksums(checkout / "dist")
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(checkout / "dist", output, dirs_exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build/release", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "release", help="an empty or new folder")
    parser.add_argument("--on-this-host", action="store_true", help="make the runtime archive without Docker")
    options = parser.parse_args(arguments)
    try:
        release(options.output, on_this_host=options.on_this_host)
    except CannotReleaseError as error:
        print(f"build/release: {error}", file=sys.stderr)
        return 1
    for path in sorted(options.output.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return 0
