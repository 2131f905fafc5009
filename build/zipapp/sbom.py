"""The zipapp's bill of materials: its Python packages, psycopg's wheels, and what these bundle."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

from build.common import sbom
from build.common.sbom import Component
from build.zipapp.natives import libpq_version


def make(packages: dict[str, bytes], natives: dict[tuple[str, str], Path], digest: str) -> bytes:
    """The document for a file with this SHA-256."""
    components = [*python_components(packages), *bundled_components(natives)]
    version = next(str(c["version"]) for c in components if c["name"] == "dislock")
    main: Component = {
        "type": "application",
        "name": "dislock.pyz",
        "version": version,
        "bom-ref": "dislock.pyz",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "licenses": [{"license": {"id": "MIT"}}],
    }
    return sbom.document(main, components)


def python_components(packages: dict[str, bytes]) -> list[Component]:
    wanted = re.compile(r"[^/]+\.dist-info/METADATA")
    return [sbom.python_component(content) for name, content in packages.items() if wanted.fullmatch(name)]


def bundled_components(natives: dict[tuple[str, str], Path]) -> list[Component]:
    """psycopg-binary itself, the packages in its wheels' own bills of materials, and each library in the wheels."""
    found: dict[str, Component] = {}
    for (platform, _), wheel in natives.items():
        with zipfile.ZipFile(wheel) as archive:
            members = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
        [metadata] = (content for n, content in members.items() if n.endswith(".dist-info/METADATA"))
        [bill] = (content for n, content in members.items() if n.endswith(".cdx.json"))
        me = sbom.python_component(metadata) | {"hashes": []}
        hashes = found.setdefault(str(me["bom-ref"]), me)["hashes"]
        assert isinstance(hashes, list)
        hashes.append({"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()})
        libraries = {n.partition("/")[2]: c for n, c in members.items() if n.startswith("psycopg_binary.libs/")}
        versions = sbom.versions(bill, libraries, libpq_version())
        for component in (*sbom.system_packages(bill), *sbom.bundled(platform, libraries, versions)):
            found.setdefault(str(component["bom-ref"]), component)
    return list(found.values())
