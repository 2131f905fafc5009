"""The CycloneDX bill of materials: the Python packages in the file, and the libraries bundled in psycopg's wheels."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from email.parser import BytesHeaderParser
from pathlib import Path

# What no package manager at psycopg's build knew of, because it was compiled there: the libraries tell their versions.
BUILT = {
    "openssl": ("libcrypto", rb"OpenSSL (\d+\.\d+\.\d+[a-z]?) "),
    "krb5": ("libkrb5-", rb"KRB5_BRAND: krb5-(\d+(?:\.\d+)+)"),
    "cyrus-sasl": ("libsasl2", rb"\0(2\.\d+\.\d+)\0"),
}
Component = dict[str, object]


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
    found: list[Component] = []
    for name, content in packages.items():
        if not re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
            continue
        metadata = BytesHeaderParser().parsebytes(content)
        component = library(
            f"pkg:pypi/{metadata['Name'].lower().replace('_', '-')}@{metadata['Version']}",
            metadata["Name"],
            metadata["Version"],
        )
        if licence := metadata["License-Expression"]:
            component["licenses"] = [{"expression": licence}]
        found.append(component)
    return found


def bundled_components(natives: dict[tuple[str, str], Path]) -> list[Component]:
    """psycopg-binary itself, what its wheels' own bills of materials name, and each library in them."""
    found: dict[str, Component] = {}
    for (platform, _), wheel in natives.items():
        _, version = wheel.name.split("-")[:2]
        me = found.setdefault(
            "psycopg-binary", library(f"pkg:pypi/psycopg-binary@{version}", "psycopg-binary", version) | {"hashes": []}
        )
        hashes = me["hashes"]
        assert isinstance(hashes, list)
        hashes.append({"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()})
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(".cdx.json"):
                    for part in json.loads(archive.read(member))["components"]:
                        if not part["purl"].startswith("pkg:pypi/"):
                            found.setdefault(part["purl"], library(part["purl"], part["name"], part["version"]))
                elif member.startswith("psycopg_binary.libs/") and not member.endswith("/"):
                    file = library_file(platform, member.partition("/")[2], archive.read(member))
                    found.setdefault(str(file["bom-ref"]), file)
    return list(found.values())


def library_file(platform: str, name: str, content: bytes) -> Component:
    """One bundled shared library, with its project's version where the file says it, else its interface version."""
    soname = re.fullmatch(r"(lib.+?)-[0-9a-f]{8}\.so\.([0-9.]+)", name)
    stem, version = (soname[1], soname[2]) if soname else (name, "")
    project = stem
    for known, (start, pattern) in BUILT.items():
        if name.startswith(start) and (told := re.search(pattern, content)):
            project, version = known, told[1].decode()
    component = library(f"{platform}/{name}", stem, version)
    if project != stem:
        component |= {"purl": f"pkg:generic/{project}@{version}", "description": f"part of {project}"}
    elif stem == "libpq":
        # libpq.so.5.N is PostgreSQL N's, from version 10 on (SO_MINOR_VERSION in src/interfaces/libpq/Makefile).
        component |= {
            "purl": f"pkg:generic/postgresql@{version.partition('.')[2]}",
            "description": "part of PostgreSQL",
        }
    component["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    component["properties"] = [{"name": "dislock:platform", "value": platform}, {"name": "dislock:file", "value": name}]
    return component


def library(ref: str, name: str, version: str) -> Component:
    component: Component = {"type": "library", "bom-ref": ref, "name": name, "version": version}
    if ref.startswith("pkg:"):
        component["purl"] = ref
    return component
