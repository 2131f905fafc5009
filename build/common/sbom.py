"""CycloneDX: the entries of a bill of materials for Python packages and bundled libraries, and the whole document."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import BytesHeaderParser

Component = dict[str, object]
#: Values of the header License that are SPDX identifiers.
IDENTIFIERS = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MPL-2.0", "ISC", "Zlib"}
CLASSIFIER = "License :: OSI Approved :: "


def document(main: Component, components: Iterable[Component]) -> bytes:
    """The bill of materials of ``main``, which consists of these components."""
    parts = sorted(components, key=lambda component: str(component["bom-ref"]))
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": parts,
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return (json.dumps(whole, indent=1, sort_keys=True) + "\n").encode()


def library(ref: str, name: str, version: str) -> Component:
    component: Component = {"type": "library", "bom-ref": ref, "name": name, "version": version}
    if ref.startswith("pkg:"):
        component["purl"] = ref
    return component


def python_component(content: bytes) -> Component:
    """One package, from its METADATA."""
    metadata = BytesHeaderParser().parsebytes(content)
    name, version = str(metadata["Name"]), str(metadata["Version"])
    component = library(f"pkg:pypi/{name.lower().replace('_', '-')}@{version}", name, version)
    if licenses := licenses_of(metadata):
        component["licenses"] = licenses
    return component


def licenses_of(metadata: Message) -> list[object]:
    """The licences: by the expression; in older packages by the identifier, else by the names in the classifiers."""
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    if (told := metadata.get("License")) in IDENTIFIERS:
        return [{"license": {"id": told}}]
    classifiers = metadata.get_all("Classifier") or []
    names = [c.removeprefix(CLASSIFIER) for c in classifiers if c.startswith(CLASSIFIER)]
    return [{"license": {"name": name}} for name in names or ([told] if told else [])]


def bundled(platform: str, files: Mapping[str, bytes], versions: Mapping[str, str]) -> list[Component]:
    """The shared libraries in psycopg's wheels for one platform, each with its project."""
    return [bundled_file(platform, name, content, versions) for name, content in sorted(files.items())]


def bundled_file(platform: str, name: str, content: bytes, versions: Mapping[str, str]) -> Component:
    soname = re.fullmatch(r"(lib.+?)-[0-9a-f]{8}\.so\.([0-9.]+)", name)
    assert soname is not None, name
    project = project_of(name, versions)
    # If the project's version is not known, use the file's own number.
    component = library(f"{platform}/{name}", soname[1], versions.get(project, soname[2]))
    component["purl"] = f"pkg:generic/{project}" + (f"@{versions[project]}" if project in versions else "")
    component["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
    component["properties"] = [{"name": "dislock:platform", "value": platform}, {"name": "dislock:file", "value": name}]
    return component


#: The beginnings of file names, by project.
PARTS = {
    "openssl": ("libcrypto-", "libssl-"),
    "krb5": ("libkrb5-", "libkrb5support-", "libk5crypto-", "libgssapi_krb5-"),
    "cyrus-sasl": ("libsasl2-",),
    "openldap": ("libldap-", "liblber-"),
    "postgresql": ("libpq-",),
    "keyutils": ("libkeyutils-",),
}
#: The project of a distribution's package.
PACKAGES = {
    "cyrus-sasl-lib": "cyrus-sasl",
    "keyutils-libs": "keyutils",
    "krb5-libs": "krb5",
    "libcom_err": "e2fsprogs",
    "libcrypto3": "openssl",
    "libldap": "openldap",
    "libsasl": "cyrus-sasl",
    "libxcrypt": "libxcrypt",
}
#: Version texts in the files of two projects. If the wheel's builder made them, no distribution's package lists them.
PRINTED = {
    "openssl": ("libcrypto-", re.compile(rb"OpenSSL (\d+\.\d+\.\d+[a-z]?) ")),
    "krb5": ("libkrb5-", re.compile(rb"KRB5_BRAND: krb5-(\d+(?:\.\d+)+)")),
}


def project_of(name: str, versions: Mapping[str, str]) -> str:
    if name.startswith("libcom_err-"):
        # krb5 has its own libcom_err, with another number.
        return "krb5" if ".so.3" in name else "e2fsprogs"
    if name.startswith("libcrypt-"):
        return "libxcrypt" if "libxcrypt" in versions else "glibc"
    return next(project for project, starts in PARTS.items() if name.startswith(starts))


def versions(bill: bytes, files: Mapping[str, bytes], libpq: str) -> dict[str, str]:
    """The versions of the projects: from the wheel's own bill of materials and from texts in the files; and libpq's.

    If the wheel's builder made OpenLDAP, neither of them has its version.
    """
    found = {"postgresql": libpq}
    for name, content in files.items():
        for project, (start, pattern) in PRINTED.items():
            if name.startswith(start) and (printed := pattern.search(content)):
                found[project] = printed[1].decode()
    for package in system_packages(bill):
        if whole := PACKAGES.get(str(package["name"])):
            found.setdefault(whole, re.split("-[r0-9]", str(package["version"]))[0])
    return found


def system_packages(bill: bytes) -> list[Component]:
    """The packages of the distribution that a wheel was built on, as the wheel's own bill of materials names them.

    auditwheel ends an Alpine package's name at its first hyphen: krb5@libs-1.21.3-r0 is krb5-libs@1.21.3-r0.
    """
    found = {}
    for purl in (str(part["purl"]) for part in json.loads(bill)["components"]):
        start, _, version = purl.rpartition("@")
        cut = re.fullmatch(r"([a-z][a-z0-9_.+-]*)-(\d.*)", version)
        if cut and purl.startswith("pkg:apk/"):
            start, version = f"{start}-{cut[1]}", str(cut[2])
        if not purl.startswith("pkg:pypi/"):
            found[f"{start}@{version}"] = library(f"{start}@{version}", start.rpartition("/")[2], version)
    return list(found.values())
