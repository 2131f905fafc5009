"""Where the files of the runtime folder come from: their licences beside them, and a CycloneDX bill of materials."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyz_sbom
import runtime_interpreter as interpreter
from pyz_sbom import Component

#: Left out, because nothing of it is in the folder: the compiler's output holds nothing of the compiler.
TOOLS = "ziglang"


@dataclass(frozen=True)
class Package:
    """A package of this machine's distribution."""

    name: str
    version: str

    def component(self, distribution: str) -> Component:
        purl = f"pkg:deb/{distribution}/{self.name}@{self.version}"
        return {"type": "library", "name": self.name, "version": self.version, "bom-ref": purl, "purl": purl}


def owners(files: Iterable[Path]) -> list[Package]:
    """The Debian packages that the files belong to; files of none, such as an interpreter built here, are left out."""
    if not shutil.which("dpkg-query"):
        return []
    found = set()
    for file in files:
        # The database may know a file by its place before or after /lib became a link to /usr/lib.
        places = {str(path).removeprefix("/usr") for path in (file, file.resolve())}
        names = [name for place in places for name in (place, f"/usr{place}")]
        told = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False).stdout
        found |= {line.split(":")[0] for line in told.splitlines() if not line.startswith("diversion by ")}
    packages = []
    for name in sorted(found):
        shown = ["dpkg-query", "-W", "-f", "${Version}\n", name]
        version = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()[0]
        packages.append(Package(name, version))
    return packages


def add_licenses(packages: Iterable[Package], folder: Path) -> None:
    folder.mkdir()
    for package in packages:
        text = Path("/usr/share/doc") / package.name / "copyright"
        if text.is_file():
            interpreter.copy(text, folder / package.name)


def packages(places: Iterable[Path]) -> list[Component]:
    """What came from the package index, and the libraries bundled in it."""
    found = []
    for place in places:
        for metadata in sorted(place.glob("*.dist-info/METADATA")):
            found.append(pyz_sbom.python_component(metadata.read_bytes()))
        bundled = {file.name: file.read_bytes() for file in (place / "psycopg_binary.libs").glob("*")}
        found += pyz_sbom.library_files(f"glibc-{interpreter.MACHINE}", bundled)
    return [component for component in found if component["name"] != TOOLS]


def cpython() -> Component:
    version = platform.python_version()
    purl = f"pkg:generic/python@{version}"
    return {"type": "platform", "name": "CPython", "version": version, "bom-ref": purl, "purl": purl}


def document(packages: Iterable[Component], owners: Iterable[Package]) -> str:
    distribution = platform.freedesktop_os_release().get("ID", "linux")
    components = [*(owner.component(distribution) for owner in owners), cpython(), *packages]
    version = next(component["version"] for component in components if component["name"] == "dislock")
    archive = f"dislock-linux-{interpreter.MACHINE}"
    main = {"type": "application", "name": archive, "version": version, "bom-ref": archive}
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": main},
            "components": components,
            "dependencies": [{"ref": archive, "dependsOn": [str(c["bom-ref"]) for c in components]}],
        },
        indent=1,
    )
