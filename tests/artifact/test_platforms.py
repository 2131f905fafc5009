"""Each platform's part of the file: loaded on every interpreter there is, and looked into for all of them."""

from __future__ import annotations

import re
import subprocess
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.zipapp.natives import libpq_version
from tests.artifact.elf import Library
from tests.artifact.pythons import PYTHONS, interpreters
from tests.artifact.support import IMPLEMENTATION, Zipapp, links, one_line
from tests.support.need import need

PLATFORMS = ("glibc-x86_64", "glibc-aarch64", "musl-x86_64", "musl-aarch64")
UNREACHABLE = {"DATABASE_URL": "postgresql://127.0.0.1:1/x", "LOCK_KEY": "job", "LOCK_STRATEGY": "lease"}
VERSIONS = ("310", "311", "312", "313", "314", "315")
#: What belongs to the C library itself, and zlib, which the manylinux policies expect of every host.
SYSTEM = {
    "glibc": {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libutil.so.1",
              "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libz.so.1"},
    "musl": {"libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libc.so"},
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHONS)
def test_it_runs_with_the_binary_implementation(zipapp: Zipapp, name: str) -> None:
    need(name in interpreters(), f"CPython {name}: not found on PATH, in pyenv or in DISLOCK_TEST_PYTHONS")
    zipapp.environment["PATH"] = links(zipapp.folder / "this", interpreters()[name].path)
    implementation, place = zipapp.python(IMPLEMENTATION).split(" ", 1)
    assert implementation == "binary"
    assert place.startswith(str(zipapp.root))
    # Nothing of another platform was unpacked, and nothing of the system's libpq is mapped.
    [cache] = zipapp.caches()
    assert {Library(path.read_bytes()).machine for path in cache.rglob("*.so*")} == {interpreters()[name].machine}
    maps = zipapp.python("import psycopg; print(open('/proc/self/maps').read())")
    libpq = {line.split(None, 5)[5] for line in maps.splitlines() if "libpq" in line}
    assert len(libpq) == 1
    assert libpq.pop().startswith(str(cache))
    # What the bill of materials says of it.
    version = "{}.{}".format(*divmod(int(zipapp.python("import psycopg; print(psycopg.pq.version())")), 10000))
    assert version == libpq_version()


@pytest.fixture(scope="module")
def archive(pyz: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(pyz) as opened:
        yield opened


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_library_that_an_extension_needs_is_there(archive: zipfile.ZipFile, platform: str, version: str) -> None:
    libc, machine = platform.split("-")
    bundled = f"natives/{platform}/psycopg_binary.libs/"
    names = {name.removeprefix(bundled) for name in archive.namelist() if name.startswith(bundled)}
    wanted = [f"natives/{platform}/cpython-{version}/{stem}.so" for stem in ("_psycopg", "pq")]
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        library = Library(archive.read(name))
        assert library.machine == machine
        assert library.needed <= names | SYSTEM[libc], name
        if library.needed & names:
            place = "$ORIGIN/../psycopg_binary.libs" if "/cpython-" in name else "$ORIGIN"
            assert place in library.search, name
        wanted += [bundled + needed for needed in library.needed & names - seen]
        seen |= library.needed
    assert any(name.startswith("libpq-") for name in seen)


def without_natives(zipapp: Zipapp) -> None:
    """The file as a host of another kind sees it."""
    new = zipapp.folder / "other.pyz"
    with zipfile.ZipFile(zipapp.file) as whole, new.open("wb") as target:
        prefix = min(member.header_offset for member in whole.infolist())
        target.write(zipapp.file.read_bytes()[:prefix])
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as part:
            for name in whole.namelist():
                content = whole.read(name)
                if name == "_bootstrap/sums":
                    lines = content.splitlines(True)[1:]
                    content = b"".join(line for line in lines if b" natives/" not in line)
                    content = b"%d\n" % zlib.crc32(content) + content
                if not name.startswith("natives/"):
                    part.writestr(name, content)
    new.chmod(0o755)
    zipapp.file = new


def test_another_platform_uses_the_systems_libpq(zipapp: Zipapp) -> None:
    done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    need("libpq.so" in done.stdout, "no libpq on this machine: apt install libpq5")
    without_natives(zipapp)
    assert zipapp.python(IMPLEMENTATION).startswith("python ")


@pytest.mark.skipif("os.geteuid() != 0", reason="needs root to hide the system's libpq")
def test_another_platform_without_a_libpq_is_told(zipapp: Zipapp) -> None:
    without_natives(zipapp)
    libraries = " ".join(str(path) for path in Path("/usr/lib").glob("*/libpq.so*"))
    hide = [
        "unshare",
        "--mount",
        "sh",
        "-ec",
        f'for file in {libraries}; do mount --bind /dev/null "$file"; done; exec "$@"',
        "sh",
    ]
    assert zipapp.run("--version", command=hide).code == 0
    # ldconfig's list still names it, so the list is hidden as well.
    hide[4] = "mount --bind /dev/null /etc/ld.so.cache; " + hide[4]
    zipapp.environment |= UNREACHABLE
    ran = zipapp.run("DATABASE_URL", "true", command=hide)
    one_line(ran, 2, "no native libraries", "libpq", "install")


def test_an_old_musl_is_told_before_it_crashes(zipapp: Zipapp) -> None:
    need("3.13-musl" in interpreters(), "CPython 3.13-musl: not found in DISLOCK_TEST_PYTHONS")
    python = Path(interpreters()["3.13-musl"].path).resolve()
    [loader] = python.parents[1].glob("lib/ld-musl-*.so.1")
    # The loader of today, which says that it is 1.2.3.
    old = zipapp.folder / loader.name
    old.write_bytes(re.sub(rb"\0(1\.2\.)\d\0", rb"\0\g<1>3\0", loader.read_bytes()))
    old.chmod(0o755)
    ran = zipapp.run("--version", command=[str(old), str(python)])
    one_line(ran, 2, "musl 1.2.3", "1.2.4")
