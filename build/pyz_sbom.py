"""The CycloneDX bill of materials: the Python packages in the file, and the libraries bundled in psycopg's wheels."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path

import pyz_versions

Component = dict[str, object]
#: What the header License may hold that is an SPDX identifier.
IDENTIFIERS = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MPL-2.0", "ISC", "Zlib"}
CLASSIFIER = "License :: OSI Approved :: "


def make(packages: dict[str, bytes], natives: dict[tuple[str, str], Path], digest: str) -> bytes:
    """The document for a file with this SHA-256."""
    components = [*python_components(packages), *bundled_components(natives)]
    components.sort(key=lambda c: str(c["bom-ref"]))
    version = next(str(c["version"]) for c in components if c["name"] == "dislock")
    root = {"type": "application", "name": "dislock.pyz", "version": version, "bom-ref": "dislock.pyz",
            "hashes": [{"alg": "SHA-256", "content": digest}], "licenses": [{"license": {"id": "MIT"}}]}  # fmt: skip
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": "dislock.pyz", "dependsOn": [c["bom-ref"] for c in components]}],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def python_components(packages: dict[str, bytes]) -> list[Component]:
    wanted = re.compile(r"[^/]+\.dist-info/METADATA")
    return [python_component(content) for name, content in packages.items() if wanted.fullmatch(name)]


def python_component(content: bytes) -> Component:
    """One package, from its METADATA."""
    metadata = BytesHeaderParser().parsebytes(content)
    name, version = str(metadata["Name"]), str(metadata["Version"])
    component = library(f"pkg:pypi/{name.lower().replace('_', '-')}@{version}", name, version)
    if licenses := licenses_of(metadata):
        component["licenses"] = licenses
    return component


def licenses_of(metadata: Message) -> list[object]:
    """By the expression; in packages older than that header by the identifier, else by the names in the classifiers."""
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    if (told := metadata.get("License")) in IDENTIFIERS:
        return [{"license": {"id": told}}]
    classifiers = metadata.get_all("Classifier") or []
    names = [c.removeprefix(CLASSIFIER) for c in classifiers if c.startswith(CLASSIFIER)]
    return [{"license": {"name": name}} for name in names or ([told] if told else [])]


def bundled_components(natives: dict[tuple[str, str], Path]) -> list[Component]:
    """psycopg-binary itself, what its wheels' own bills of materials name, and each library in them."""
    found: dict[str, Component] = {}
    for (platform, _), wheel in natives.items():
        with zipfile.ZipFile(wheel) as archive:
            members = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
        [metadata] = (content for n, content in members.items() if n.endswith(".dist-info/METADATA"))
        me = python_component(metadata) | {"hashes": []}
        hashes = found.setdefault(str(me["bom-ref"]), me)["hashes"]
        assert isinstance(hashes, list)
        hashes.append({"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()})
        for member, content in members.items():
            if member.endswith(".cdx.json"):
                for part in json.loads(content)["components"]:
                    if not part["purl"].startswith("pkg:pypi/"):
                        system = system_package(part["purl"])
                        found.setdefault(str(system["bom-ref"]), system)
        libraries = {n.partition("/")[2]: c for n, c in members.items() if n.startswith("psycopg_binary.libs/")}
        for file in library_files(platform, libraries):
            found.setdefault(str(file["bom-ref"]), file)
    return list(found.values())


def system_package(purl: str) -> Component:
    """A package of the distribution that a wheel was built on.

    auditwheel ends an Alpine package's name at its first hyphen: krb5@libs-1.21.3-r0 is krb5-libs@1.21.3-r0.
    """
    start, _, version = purl.rpartition("@")
    if cut := re.fullmatch(r"([a-z][a-z0-9_.+-]*)-(\d.*)", version) if purl.startswith("pkg:apk/") else None:
        start, version = f"{start}-{cut[1]}", cut[2]
    return library(f"{start}@{version}", start.rpartition("/")[2], version)


def library_files(platform: str, files: Mapping[str, bytes]) -> list[Component]:
    """The bundled shared libraries of one platform, each with its project's version if that is known, else its own."""
    versions = pyz_versions.versions(files)
    return [library_file(platform, name, content, versions) for name, content in sorted(files.items())]


def library_file(platform: str, name: str, content: bytes, versions: Mapping[str, str]) -> Component:
    soname = re.fullmatch(r"(lib.+?)-[0-9a-f]{8}\.so\.([0-9.]+)", name)
    stem, version = (soname[1], soname[2]) if soname else (name, "")
    project = pyz_versions.project_of(name)
    component = library(f"{platform}/{name}", stem, versions.get(project or "", version))
    if project:
        known = f"@{versions[project]}" if project in versions else ""
        component |= {"purl": f"pkg:generic/{project}{known}", "description": f"part of {project}"}
    component["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    component["properties"] = [{"name": "dislock:platform", "value": platform}, {"name": "dislock:file", "value": name}]
    return component


def library(ref: str, name: str, version: str) -> Component:
    component: Component = {"type": "library", "bom-ref": ref, "name": name, "version": version}
    if ref.startswith("pkg:"):
        component["purl"] = ref
    return component
