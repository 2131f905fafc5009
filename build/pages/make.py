"""Makes the site: the documents as they lie in the repository, by MkDocs at pinned versions."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import generated

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache"
LOCK = HERE / "pages.lock"
SITE = ROOT / "dist" / "docs"
#: What the site is made from, where it stands in the repository, so that links between the files stay true.
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "examples")


def main() -> None:
    if sys.argv[1:] == ["--refresh"]:
        for file in generated.refresh():
            print(file.relative_to(ROOT))
        return
    if sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} [--refresh]")
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".site-lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        python = tools()
        _gather(CACHE / "site-source")
        # The documented packages are read from the checkout; nothing of this account's Python gets in.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # What Material prints about itself is no news about these documents.
        environment |= {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(python), "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
        done = subprocess.run(
            [*command, "--config-file", str(HERE / "mkdocs.yml"), "--site-dir", str(SITE)],
            check=False,
            env=environment,
            cwd=ROOT,
        )
    if done.returncode:
        sys.exit(done.returncode)
    print(f"{SITE.relative_to(ROOT)}/index.html")


def tools() -> Path:
    """The Python of an environment with the tools, made when the lock file is newer than it."""
    stamp = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    folder = CACHE / "site-tools"
    python = folder / "bin" / "python"
    if not (folder / ".stamp").is_file() or (folder / ".stamp").read_text() != stamp:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        _run([*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(LOCK)])
        (folder / ".stamp").write_text(stamp)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _gather(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
