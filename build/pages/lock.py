"""Resolves the tools that make the site, and writes pages.lock with the hash of each file that may be used.

Run it as ``python -m build.pages.lock`` to get newer tools.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: mkdocstrings 1.0 cannot use the highlighting of pymdown-extensions 12.
TOOLS = ("mkdocs", "mkdocs-material", "mkdocstrings[python]", "pymdown-extensions<12")
#: The oldest decides the versions.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux2014_aarch64", "manylinux_2_28_aarch64")
#: Not needed to build the site once.
UNUSED = ("watchdog", "pip", "setuptools")


def main() -> None:
    hashes: dict[str, set[str]] = {}
    for python in PYTHONS:
        for machine in ("x86_64", "aarch64"):
            platforms = [word for name in PLATFORMS if name.endswith(machine) for word in ("--platform", name)]
            for requirement, digest in _resolve(list(hashes) or list(TOOLS), python, platforms):
                hashes.setdefault(requirement, set()).add(digest)
    lines = ["# Written by python -m build.pages.lock; not edited by hand."]
    for requirement, digests in sorted(hashes.items()):
        lines.append(requirement + "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests)))
    (Path(__file__).resolve().parent / "pages.lock").write_text("\n".join(lines) + "\n")


def _resolve(requirements: list[str], python: str, platforms: list[str]) -> list[tuple[str, str]]:
    """Name and version of each distribution, with the hash of the file that this Python would take."""
    pinned = ["--no-deps"] if "==" in requirements[0] else []
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", *pinned]
        command += ["--report", str(report), "--target", work, "--only-binary", ":all:", "--python-version", python]
        subprocess.run([*command, *platforms, *requirements], check=True)
        installs = json.loads(report.read_text())["install"]
    found = []
    for each in installs:
        name = each["metadata"]["name"].lower().replace("_", "-")
        if name not in UNUSED:
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            found.append((f"{name}=={each['metadata']['version']}", digest))
    return found


if __name__ == "__main__":
    main()
