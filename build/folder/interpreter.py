"""Copies the running CPython, the needed part of its standard library, and every shared library that it needs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
MACHINE = platform.machine()

#: Loaded by name at run time, so that no file lists them: name services, thread cancellation, and the empty libraries
#: that older wheels still need.
BY_NAME = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libutil.so.1",
    "libpthread.so.0",
    "libresolv.so.2",
    "libanl.so.1",
    "libgcc_s.so.1",
    "libnss_files.so.2",
    "libnss_dns.so.2",
    "libnss_compat.so.2",
)

#: Not needed by a job without a terminal, a compiler and tests of the interpreter itself.
LEFT_OUT = re.compile(
    r"""
    (test|tests|idlelib|idle_test|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|venv|_pyrepl|__pycache__
    |site-packages|dist-packages|turtle\.py|sitecustomize\.py|EXTERNALLY-MANAGED|config-3\..*
    |(_tkinter|_test\w*|_ctypes_test|_xx\w*|xx\w*|readline|_curses\w*|_dbm|_gdbm|nis|ossaudiodev)\..*\.so
    |.*\.(a|o|pyc|exe|whl))
    """,
    re.VERBOSE,
)


class CannotBuildError(Exception):
    """What is missing on this machine, in one sentence."""


def check_machine() -> None:
    libc, version = platform.libc_ver()
    if MACHINE not in LOADERS:
        raise CannotBuildError(f"no runtime is made for {MACHINE}; known are {', '.join(LOADERS)}")
    # 2.33 is the first with --argv0. Without it, sys.executable would name a file that cannot be started.
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 33):
        raise CannotBuildError(f"glibc 2.33 or newer is needed (Debian 12, RHEL 10), not {libc} {version}")


def program() -> Path:
    return Path(sys.executable).resolve()


def library_folder() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def libraries_of(files: Iterable[Path]) -> Iterator[Path]:
    """Every library that the system's loader would load for these files, by the name that the files use."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    for file in files:
        told = subprocess.run(["ldd", file], env=environment, capture_output=True, text=True, check=True)
        if "not found" in told.stdout:
            raise CannotBuildError(f"a library that {file} needs is not on this machine:\n{told.stdout}")
        for path in re.findall(r"^\s*\S+ => (/\S+) \(", told.stdout, re.MULTILINE):
            yield Path(path)


def loader() -> Path:
    """The C library's loader, which is also the place to find the rest of the C library."""
    told = subprocess.run(["ldd", program()], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"(/\S*{re.escape(LOADERS[MACHINE])})", told)
    if found is None:
        raise CannotBuildError(f"{program()} is not started by {LOADERS[MACHINE]}")
    return Path(found[1])


def by_name(folder: Path) -> Iterator[Path]:
    for name in BY_NAME:
        path = folder / name
        if path.exists():
            yield path
        elif name in ("libc.so.6", "libm.so.6", "libgcc_s.so.1"):
            raise CannotBuildError(f"{name} is not beside the C library in {folder}")


def copy_standard_library(target: Path) -> None:
    def left_out(_folder: str, names: list[str]) -> set[str]:
        return {name for name in names if LEFT_OUT.fullmatch(name)}

    source = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(source, target / library_folder(), ignore=left_out, copy_function=copy)
    extensions = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    if not (target / library_folder() / "lib-dynload").exists():
        shutil.copytree(extensions, target / library_folder() / "lib-dynload", ignore=left_out, copy_function=copy)


def copy(source: str | Path, target: str | Path) -> None:
    """Copies content and execute permission, whatever the umask and the owner. A link becomes what it points to."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def copy_interpreter(root: Path) -> set[Path]:
    """Copies the loader, the interpreter, its standard library and all of their libraries to ``root``/lib.

    Returns the files of this machine that were copied, except those of the standard library.
    """
    lib = root / "lib"
    lib.mkdir(parents=True)
    copy(loader(), lib / LOADERS[MACHINE])
    (lib / LOADERS[MACHINE]).chmod(0o755)
    copy(program(), lib / "cpython")
    copy_standard_library(lib)
    libc = next(path for path in libraries_of([program()]) if path.name == "libc.so.6").parent
    libraries = copy_libraries(root, [program(), *(lib / library_folder()).rglob("*.so")], extra=by_name(libc))
    return {loader(), program(), Path(os.__file__), *libraries}


def copy_libraries(root: Path, files: Iterable[Path], extra: Iterable[Path] = ()) -> set[Path]:
    """Copies the libraries of ``files`` that are not in ``root`` yet. Returns where they were."""
    copied = set()
    for library in {*libraries_of(files), *extra}:
        target = root / "lib" / library.name
        if root not in library.parents and library.name not in LOADERS.values() and not target.exists():
            copy(library, target)
            target.chmod(0o644)
            copied.add(library)
    return copied


def strip(root: Path) -> None:
    """Removes debugging symbols: an interpreter built from source has 20 MB of them, a distribution's has none."""
    for file in (root / "lib").rglob("*"):
        # patchelf has changed the layout of the libraries in wheels, and strip is known to break such files.
        if file.is_symlink() or not file.is_file() or "site-packages" in file.parts:
            continue
        with file.open("rb") as opened:
            if opened.read(4) != b"\x7fELF":
                continue
        subprocess.run(["strip", "--strip-unneeded", file], check=True)
