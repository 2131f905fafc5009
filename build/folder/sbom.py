"""Where the folder's files come from: licences, the distribution's own records, and a bill of materials."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build.common import sbom
from build.common.sbom import Component
from build.folder import interpreter
from build.zipapp.natives import libpq_version

#: Left out, because the compiler's output contains nothing of the compiler.
TOOLS = "ziglang"


@dataclass(frozen=True)
class Package:
    """A package of this machine's distribution, as dpkg records it."""

    record: str

    def field(self, name: str) -> str:
        return next(line for line in self.record.splitlines() if line.startswith(f"{name}: ")).partition(": ")[2]

    @property
    def name(self) -> str:
        return self.field("Package")

    def component(self, release: dict[str, str]) -> Component:
        system = release["ID"]
        version, architecture = self.field("Version"), self.field("Architecture")
        # Without distro, scanners do not know whose advisories to use.
        distro = f"{system}-{release['VERSION_ID']}" if "VERSION_ID" in release else system
        purl = f"pkg:deb/{system}/{self.name}@{version}?arch={architecture}&distro={distro}"
        return sbom.library(purl, self.name, version)


def owners(files: Iterable[Path]) -> list[Package]:
    """The Debian packages of the files. Files without a package, such as an interpreter built here, are left out."""
    if not shutil.which("dpkg-query"):
        return []
    found = set()
    for file in files:
        # dpkg may know a file by its path from before or after /lib became a link to /usr/lib.
        places = {str(path).removeprefix("/usr") for path in (file, file.resolve())}
        names = [name for place in places for name in (place, f"/usr{place}")]
        told = subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True, check=False).stdout
        found |= {line.split(": ")[0] for line in told.splitlines() if not line.startswith("diversion by ")}
    shown = [subprocess.run(["dpkg-query", "-s", name], capture_output=True, text=True, check=True) for name in found]
    return sorted((Package(done.stdout) for done in shown), key=lambda package: package.name)


def add_licenses(packages: Iterable[Package], folder: Path) -> None:
    folder.mkdir()
    for package in packages:
        text = Path("/usr/share/doc") / package.name / "copyright"
        if text.is_file():
            interpreter.copy(text, folder / package.name)


def add_records(packages: Iterable[Package], folder: Path) -> None:
    """Writes what scanners of images read, as in images without dpkg: the release, and a file for each package."""
    (folder / "status.d").mkdir(parents=True)
    for package in packages:
        (folder / "status.d" / package.name).write_text(package.record)
    interpreter.copy(Path("/etc/os-release").resolve(), folder / "os-release")


def packages(places: Iterable[Path], bill: bytes) -> list[Component]:
    """The packages from the package index, and the libraries bundled in them."""
    found = []
    for place in places:
        for metadata in sorted(place.glob("*.dist-info/METADATA")):
            found.append(sbom.python_component(metadata.read_bytes()))
        bundled = {file.name: file.read_bytes() for file in (place / "psycopg_binary.libs").glob("*")}
        found += sbom.bundled(f"glibc-{interpreter.MACHINE}", bundled, sbom.versions(bill, bundled, libpq_version()))
    return [component for component in found if component["name"] != TOOLS]


def cpython() -> Component:
    version = platform.python_version()
    return {**sbom.library(f"pkg:generic/python@{version}", "CPython", version), "type": "platform"}


def document(packages: Iterable[Component], owners: Iterable[Package]) -> bytes:
    release = platform.freedesktop_os_release()
    components = [*(owner.component(release) for owner in owners), cpython(), *packages]
    version = next(component["version"] for component in components if component["name"] == "dislock")
    archive = f"dislock-linux-{interpreter.MACHINE}"
    return sbom.document({"type": "application", "name": archive, "version": version, "bom-ref": archive}, components)
