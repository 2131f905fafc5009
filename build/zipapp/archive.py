"""Makes dist/dislock.pyz with shiv, then changes its layout. Runs in the environment of tools.lock.

shiv stages the locked wheels, finds the entry point and packs the archive with its environment.json, which `shiv-info`
reads. docs/artifact.md says what is changed afterwards, and why.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from build.common import wheel
from build.common.tools import BUILD, ROOT, pip, pip_environment
from build.zipapp import natives as native
from build.zipapp import sbom

#: The archive's own files, at their paths in the archive.
INSIDE = BUILD / "zipapp" / "inside"
MODULES = ("place", "start", "unpack", "ahead", "complete", "tidy", "script")
# Files that describe the installation on this machine, or that nothing in the archive reads.
LEFT_OUT = re.compile(
    r"^share/|(^|/)(bin|tests?|__pycache__)/|\.(pyi|pyx|pxd|c)$|\.dist-info/(RECORD|INSTALLER|REQUESTED|WHEEL|direct_url\.json|top_level\.txt)$"
)
#: Python's own modules that may be missing: the first three if it was built without the headers of their libraries, the
#: last two if a distribution has reduced its packages to the minimum.
NEEDED = b"zlib _ssl _ctypes asyncio decimal"
# Most runs import neither, so they stay packed.
LATER = {"sqlalchemy": ("sqlalchemy/", "sqlalchemy-"), "tzdata": ("tzdata/", "tzdata-")}


def main() -> None:
    os.umask(0o022)
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        packages, environment = pack(work)
        natives = native.wheels()
        members = lay_out(packages, dict(native.members(natives)))
        content = assemble(members, environment)
        bom = sbom.make(packages, natives, hashlib.sha256(content).hexdigest())
    dist.mkdir(exist_ok=True)
    replace(dist / "dislock.pyz", content, 0o755)
    replace(dist / "dislock.cdx.json", bom, 0o644)
    sums = "".join(
        f"{hashlib.sha256((dist / n).read_bytes()).hexdigest()}  {n}\n" for n in ("dislock.cdx.json", "dislock.pyz")
    )
    replace(dist / "SHA256SUMS", sums.encode(), 0o644)
    print(f"{dist / 'dislock.pyz'}: {len(content) / 1e6:.1f} MB")


def pack(work: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """What shiv packs: the files of site-packages by name, and shiv's description of the archive."""
    wheel.build(work, "wheel")
    [built] = work.glob("*.whl")
    staged = work / "staged"
    pip(sys.executable, "install", "--no-deps", "--no-index", "--no-compile", "--target", str(staged), str(built))
    packed = work / "packed.pyz"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "shiv", "--console-script", "dislock", "--python", "/bin/sh",
         "--site-packages", str(staged), "--output-file", str(packed), "--reproducible",
         # The rest are pip's options: the locked wheels, in the form that works on every host.
         "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:",
         "--python-version", "3.10", "--platform", "any", "-r", str(BUILD / "zipapp" / "packages.lock")],
        check=False, capture_output=True, text=True, env=pip_environment(sys.executable),
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"shiv failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    with zipfile.ZipFile(packed) as archive:
        files = {n: archive.read(n) for n in archive.namelist()}
    packages = {n.partition("/")[2]: content for n, content in files.items() if n.startswith("site-packages/")}
    return {n: content for n, content in packages.items() if not LEFT_OUT.search(n)}, json.loads(
        files["environment.json"]
    )


def lay_out(packages: dict[str, bytes], natives: dict[str, bytes]) -> dict[str, bytes]:
    """Every member of the archive, except those that contain the build's name."""
    late = {part: {n: c for n, c in packages.items() if n.startswith(names)} for part, names in LATER.items()}
    members = {f"site-packages/{n}": c for n, c in packages.items() if not any(n in part for part in late.values())}
    members |= {f"later/{part}.zip": zipped(files) for part, files in late.items()}
    members |= natives
    members["__main__.py"] = (INSIDE / "guard.py").read_bytes()
    for module in ("__init__", *MODULES):
        members[f"_bootstrap/{module}.py"] = (INSIDE / "_bootstrap" / f"{module}.py").read_bytes()
    members["_bootstrap/imports"] = (INSIDE / "_bootstrap" / "imports").read_bytes()
    # unpack.py reads this instead of the archive's directory, and checks each member with it.
    read = (n for n in sorted(members) if n.startswith(("site-packages/", "later/", "natives/", "_bootstrap/imports")))
    sums = "".join(f"{zlib.crc32(members[n])} {n}\n" for n in read).encode()
    members["_bootstrap/sums"] = b"%d\n" % zlib.crc32(sums) + sums
    return members


def assemble(members: dict[str, bytes], environment: dict[str, object]) -> bytes:
    """The whole file: the launcher, the program that the launcher starts, and the archive."""
    launcher = (INSIDE / "launcher.sh").read_bytes().replace(b"@NEEDED@", NEEDED)
    digest = hashlib.sha256(launcher)
    for name, content in sorted(members.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    build = digest.hexdigest()[:16]
    place, start = (members[f"_bootstrap/{n}.py"].replace(b"@BUILD@", build.encode()) for n in ("place", "start"))
    guard = members["__main__.py"].replace(b"@NEEDED@", NEEDED)
    guard = guard.replace(b"@PLACE@", b"%d" % len(place)).replace(b"@START@", b"%d" % len(start))
    # The numbers are as long as their placeholders, so the launcher's length is known before they are filled in.
    launcher = launcher.replace(b"@OFFSET@", b"%-8d" % len(launcher)).replace(b"@GUARD@", b"%-7d" % len(guard))
    launcher = launcher.replace(b"@LENGTH@", b"%-8d" % len(guard + place + start))
    members = members | {
        "__main__.py": guard,
        "_bootstrap/place.py": place,
        "_bootstrap/start.py": start,
        "environment.json": (
            json.dumps(environment | {"build_id": digest.hexdigest()}, sort_keys=True) + "\n"
        ).encode(),
    }
    return zipped(members, prefix=launcher + guard + place + start)


def zipped(files: dict[str, bytes], prefix: bytes = b"") -> bytes:
    """A zip archive whose bytes depend only on its content."""
    target = io.BytesIO()
    target.write(prefix)
    with zipfile.ZipFile(target, "w") as archive:
        # The interpreter reads these two first.
        for name in sorted(files, key=lambda n: (n != "__main__.py", not n.startswith("_bootstrap/"), n)):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.create_system = 3
            member.external_attr = 0o100644 << 16
            # A Python without zlib must be able to read __main__.py, which reports that.
            stored = name.endswith(".zip") or name == "__main__.py"
            member.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name], compresslevel=9)
    return target.getvalue()


def replace(path: Path, content: bytes, mode: int) -> None:
    """Replaces the file in one step. A process that has the old file open keeps it."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(mode)
    new.replace(path)


if __name__ == "__main__":
    main()
