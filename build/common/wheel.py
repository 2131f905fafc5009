"""The wheel and the source distribution, from this checkout. Runs in the environment of tools.lock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from build.common.tools import ROOT


def build(folder: Path, *targets: str) -> None:
    """hatchling's own command, so that nothing else has a say. Its output is reproducible under a fixed umask.

    The source distribution takes every file of the checkout that .gitignore does not name, so ``folder`` must be
    outside of it or named there.
    """
    os.umask(0o022)
    for target in targets:
        # Quiet unless it fails: what it prints is the file's place aside.
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if done.returncode:
            sys.exit(f"hatchling failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    # Made aside and moved, so that a broken build leaves the last good files.
    with tempfile.TemporaryDirectory(dir=dist, prefix=".new-") as work:
        build(Path(work), "wheel", "sdist")
        for file in sorted(Path(work).iterdir()):
            file.replace(dist / file.name)
            print(dist / file.name)


if __name__ == "__main__":
    main()
