"""The wheel and the source distribution, from this checkout. Runs in the environment of tools.lock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from build.common.tools import ROOT


def build(folder: Path, *targets: str) -> None:
    """Runs hatchling's own command, so that no other settings count. Its output is reproducible with a fixed umask.

    The source distribution contains every file of the checkout that .gitignore does not name, so ``folder`` must be
    outside the checkout or named in .gitignore.
    """
    os.umask(0o022)
    for target in targets:
        # Its output is shown only if it fails, because it prints the temporary place of the file.
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
    # Made in another folder and moved, so that a failed build leaves the last good files.
    with tempfile.TemporaryDirectory(dir=dist, prefix=".new-") as work:
        build(Path(work), "wheel", "sdist")
        for file in sorted(Path(work).iterdir()):
            file.replace(dist / file.name)
            print(dist / file.name)


if __name__ == "__main__":
    main()
