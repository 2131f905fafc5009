"""The other files of the default image, beside its base and /dislock: its user, links, and what scanners read.

Called by the Dockerfile. A base may have its own version of any of these files, which is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

from build.common import sbom

USER = 65532
#: Where programs of several distributions look for certificates.
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem")
BILL = "bill-of-materials.cdx.json"


def make(base: Path, dislock: Path, target: Path) -> None:
    add_user(base, target)
    write(target / "usr/bin/python3", '#!/bin/sh\nexec /dislock/bin/python3 "$@"\n').chmod(0o755)
    link(target, "/usr/bin/dislock", "/dislock/dislock")
    # Also at the place where the folder's own OpenSSL was built to look.
    own = [str(dislock / "bin" / "python3"), "-c", "import ssl; print(ssl.get_default_verify_paths().openssl_cafile)"]
    for place in {*CERTIFICATES, subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()}:
        link(target, place, "/dislock/ssl/cert.pem")
    [zones] = dislock.glob("lib/python3.*/site-packages/tzdata/zoneinfo")
    if not (base / "usr/share/zoneinfo").exists():
        link(target, "/usr/share/zoneinfo", f"/dislock/{zones.relative_to(dislock)}")
    add_records(base, dislock, target)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(target: Path, place: str, to: str) -> None:
    path = target / place.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def add_user(base: Path, target: Path) -> None:
    """Adds a user and a group to the base's own, which differ from base to base."""
    for name, line in (("passwd", f"dislock:x:{USER}:{USER}:dislock:/tmp:/bin/sh"), ("group", f"dislock:x:{USER}:")):
        write(target / "etc" / name, f"{(base / 'etc' / name).read_text()}{line}\n")


def add_records(base: Path, dislock: Path, target: Path) -> None:
    """Adds release and packages of the distribution of the folder's files, and a bill with the base's busybox."""
    records = dislock / "distribution"
    if records.is_dir() and not (base / "etc/os-release").is_symlink() and not (base / "etc/os-release").exists():
        shutil.copytree(records / "status.d", target / "var/lib/dpkg/status.d")
        shutil.copyfile(records / "os-release", target / "etc/os-release")
    bill = json.loads((dislock / BILL).read_text())
    main = {**bill["metadata"]["component"], "name": "dislock-image", "bom-ref": "dislock-image"}
    parts = bill["components"]
    busybox = base / "bin/busybox"
    if busybox.exists():
        told = subprocess.run([busybox], capture_output=True, text=True, check=True).stdout
        if found := re.match(r"BusyBox v(\d+(?:\.\d+)+)", told):
            parts.append(sbom.library(f"pkg:generic/busybox@{found[1]}", "busybox", found[1]))
    write(target / "usr/share/dislock" / BILL, sbom.document(main, parts).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="the base image's root")
    parser.add_argument("dislock", type=Path, help="what becomes /dislock")
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    make(options.base, options.dislock, options.target)


if __name__ == "__main__":
    main()
