"""Makes the runtime folder: the zipapp's packages with their own CPython, loader and C library."""

from __future__ import annotations

import argparse
import hashlib
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from build.common.sbom import Component
from build.common.tools import BUILD, ROOT, pip, tools
from build.folder import interpreter, packages, sbom
from build.folder import pack as archives
from build.folder.interpreter import CannotBuildError

INSIDE = BUILD / "folder" / "inside"
C_OPTIONS = (
    "-Os",
    "-s",
    "-static",
    "-nostdlib",
    "-ffreestanding",
    "-fno-stack-protector",
    "-Wall",
    "-Wextra",
    "-Werror",
)


def fetch_tools(target: Path) -> None:
    """Installs the locked compiler and certificates with pip, which checks their hashes."""
    lock = str(BUILD / "folder" / "folder.lock")
    checked = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
    pip(tools(), "install", *checked, "--target", str(target), "--requirement", lock)


def compile_launchers(root: Path, tools: Path) -> None:
    """Compiles the launchers, which need no C library, with $CC or the locked compiler."""
    given = os.environ.get("CC")
    target = ["-target", f"{interpreter.MACHINE}-linux-none", "-fno-sanitize=all"]
    compiler = shlex.split(given) if given else [sys.executable, "-m", "ziglang", "cc", *target]
    loader = f'-DLOADER="{interpreter.LOADERS[interpreter.MACHINE]}"'
    (root / "bin").mkdir()
    for output, options in ((root / "dislock", [loader]), (root / "bin" / "python3", [loader, "-DPYTHON"])):
        subprocess.run(
            [*compiler, *C_OPTIONS, *options, "-o", output, INSIDE / "launcher.c"],
            env={**os.environ, "PYTHONPATH": str(tools), "ZIG_GLOBAL_CACHE_DIR": str(tools / "cache")},
            check=True,
        )
        output.chmod(0o755)


def add_start(root: Path) -> None:
    library = root / "lib" / interpreter.library_folder()
    # As bytecode, because a script would be compiled at each start.
    py_compile.compile(
        str(INSIDE / "start.py"),
        cfile=str(root / "lib" / "start.pyc"),
        dfile="start.py",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    interpreter.copy(INSIDE / "sitecustomize.py", library / "sitecustomize.py")
    interpreter.copy(INSIDE / "dislock_install.py", library / "site-packages" / "dislock_install.py")


def compile_modules(root: Path, folder: Path) -> None:
    """Replaces sources by bytecode: 8 MB less, and half as many files to copy into a pod's volume.

    The folder's own launcher and interpreter do it, which also shows that they run.
    """
    command = [str(root / "bin" / "python3"), "-S", "-s", "-m", "compileall", "-q", "-b"]
    options = ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/dislock"]
    # The order of sets in bytecode depends on the hash seed.
    subprocess.run([*command, *options, str(folder)], env={"PYTHONHASHSEED": "0"}, check=True)
    for source in [*folder.rglob("*.py")]:
        source.unlink()
    for cache in [*folder.rglob("__pycache__")]:
        shutil.rmtree(cache)


def zip_folder(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = zipfile.ZipInfo(str(path.relative_to(folder)))
                archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def make(root: Path, zipapp: Path) -> None:
    """Fills ``root``, which must not exist."""
    interpreter.check_machine()
    site = root / "lib" / interpreter.library_folder() / "site-packages"
    packed = site / "packed"
    with tempfile.TemporaryDirectory() as scratch:
        tools = Path(scratch)
        fetch_tools(tools)
        from_here = interpreter.copy_interpreter(root)
        compile_launchers(root, tools)
        (root / "ssl").mkdir()
        # From the package, never from this machine's trust store, which may contain a company's own certificates.
        interpreter.copy(tools / "certifi" / "cacert.pem", root / "ssl" / "cert.pem")
        packages.unpack(zipapp, site, packed)
        from_here |= interpreter.copy_libraries(root, site.rglob("*.so*"))
        if shutil.which("strip"):
            interpreter.strip(root)
        add_start(root)
        compile_modules(root, root / "lib" / interpreter.library_folder())
        describe(root, sbom.packages([site, packed, tools], packages.bill(zipapp)), from_here)
        zip_folder(packed, site / packages.PACKED)
        shutil.rmtree(packed)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def describe(root: Path, parts: Iterable[Component], from_here: Iterable[Path]) -> None:
    owners = sbom.owners(from_here)
    sbom.add_licenses(owners, root / "licenses")
    if owners:
        sbom.add_records(owners, root / "distribution")
    (root / "bill-of-materials.cdx.json").write_bytes(sbom.document(parts, owners))


def pack(root: Path, output: Path) -> None:
    archive = output / f"dislock-linux-{interpreter.MACHINE}.tar.gz"
    output.mkdir(parents=True, exist_ok=True)
    archives.pack(root, archive)
    add_checksum(archive)
    unpacked = archives.size(root)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked")


def add_checksum(archive: Path) -> None:
    """Its line in SHA256SUMS, beside those of what build/pyz made."""
    sums = archive.with_name("SHA256SUMS")
    lines = sums.read_text().splitlines() if sums.exists() else []
    others = [line for line in lines if line.partition("  ")[2] != archive.name]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    sums.write_text("\n".join(sorted([*others, f"{digest}  {archive.name}"], key=lambda line: line[66:])) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build/runtime", description=__doc__)
    parser.add_argument("--zipapp", type=Path, default=ROOT / "dist" / "dislock.pyz")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the archive goes (dist/)")
    parser.add_argument("--folder", type=Path, help="only make this folder, and no archive")
    parser.add_argument("--pack", type=Path, help="only make the archive, from a folder made before")
    options = parser.parse_args(arguments)
    try:
        if options.folder:
            make(options.folder.resolve(), options.zipapp)
        elif options.pack:
            pack(options.pack.resolve(), options.output)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                make(Path(scratch) / "dislock", options.zipapp)
                pack(Path(scratch) / "dislock", options.output)
    except CannotBuildError as error:
        print(f"build/runtime: {error}", file=sys.stderr)
        return 1
    return 0
