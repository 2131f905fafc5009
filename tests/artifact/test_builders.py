"""The scripts in build/: what the wheel and the source distribution hold, what the bill of materials says of each
part, and how a machine is told what it lacks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build.folder.make import add_checksum
from ci.environments import ROOT
from tests.artifact.pythons import interpreters
from tests.artifact.test_build import checkout
from tests.support.need import need_program

PLATFORMS = ("glibc-x86_64", "glibc-aarch64", "musl-x86_64", "musl-aarch64")


def build(place: Path, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(place / "build" / script), *arguments]
    environment = {**os.environ, **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_wheel_and_source_distribution(tmp_path: Path) -> None:
    version = next(p for p in ("3.12", "3.11", "3.10", "3.13") if p in interpreters())
    original = checkout(tmp_path / "original")
    tracked = {str(path.relative_to(original)) for path in original.rglob("*") if path.is_file()}
    made = []
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[install]\nuser = true\n[global]\ntarget = {tmp_path / 'astray'}\n")
    # What the caller tells pip for other ends reaches no builder's pip, by variables or in a file.
    variables = {"PIP_USER": "1", "PIP_TARGET": str(tmp_path / "astray"), "PIP_REQUIRE_VIRTUALENV": "1"}
    builders = (("a", 0o022, variables), ("other folder/b", 0o077, {"PIP_CONFIG_FILE": str(settings)}))
    for name, umask, astray in builders:
        place = tmp_path / name
        shutil.copytree(original, place)
        done = subprocess.run(
            [interpreters()[version].path, "build/wheel"], cwd=place, umask=umask, check=False, capture_output=True,
            env={**os.environ, **astray}, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        made.append({path.name: path.read_bytes() for path in (place / "dist").iterdir()})
    assert made[0].keys() == made[1].keys()
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    [wheel] = (tmp_path / "a" / "dist").glob("dislock-*-py3-none-any.whl")
    [source] = (tmp_path / "a" / "dist").glob("dislock-*.tar.gz")
    assert len(made[0]) == 2
    assert not (tmp_path / "astray").exists()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"dislock/py.typed", "pg_advisory_lock/py.typed", "dislock/cli/run.py"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {
        "dislock",
        "pg_advisory_lock",
        *(wheel.name.replace("-py3-none-any.whl", f".{part}") for part in ("dist-info", "data")),
    }
    assert [name for name in names if name.endswith(".data/data/share/man/man1/dislock.1")] != []
    with tarfile.open(source) as packed:
        inside = {member.name.partition("/")[2] for member in packed}
    # Nothing but the checkout: no wheel made a moment ago, no cache.
    ours = {name for name in tracked if not name.startswith((".ci/", ".cache/"))}
    assert inside == {*ours, "PKG-INFO"}
    assert source.stat().st_size < 2_000_000


def test_the_runtime_archive_joins_the_checksums(tmp_path: Path) -> None:
    sums, archive = tmp_path / "SHA256SUMS", tmp_path / "dislock-linux-x86_64.tar.gz"
    sums.write_text(f"{'0' * 64}  dislock.pyz\n")
    for content in (b"old", b"new"):
        archive.write_bytes(content)
        add_checksum(archive)
    digest = hashlib.sha256(b"new").hexdigest()
    assert sums.read_text() == f"{digest}  dislock-linux-x86_64.tar.gz\n{'0' * 64}  dislock.pyz\n"


@pytest.fixture
def no_ensurepip(tmp_path: Path) -> str:
    """A PYTHONPATH with which any Python is like Debian's without python3-venv."""
    place = tmp_path / "without"
    place.mkdir()
    (place / "sitecustomize.py").write_text("import sys\nsys.modules['ensurepip'] = None\n")
    return str(place)


@pytest.mark.parametrize("script", ["pyz", "wheel", "runtime", "release"])
def test_without_venv_one_sentence_says_what_to_install(script: str, tmp_path: Path, no_ensurepip: str) -> None:
    place = checkout(tmp_path / "checkout")
    commit(place)
    (place / "dist").mkdir()
    arguments = ["--on-this-host", "--output", str(tmp_path / "out")] if script == "release" else []
    done = build(place, script, *arguments, PYTHONPATH=no_ensurepip)
    assert done.returncode == 1
    sentence, *rest = done.stderr.splitlines()
    assert sentence.endswith(" cannot make virtual environments here; on Debian and Ubuntu: apt install python3-venv")
    assert sentence.split()[0] == sys.executable
    # The release says which of its parts it was, too.
    assert [line.partition(":")[0] for line in rest] == (["build/release"] if script == "release" else [])


def commit(place: Path) -> None:
    git = [need_program("git"), "-C", str(place), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *command], check=True)


def test_a_release_without_git(tmp_path: Path) -> None:
    done = build(checkout(tmp_path), "release", "--output", str(tmp_path / "out"), PATH=str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "build/release: no git on PATH; on Debian and Ubuntu: apt install git\n"


def test_a_release_from_no_repository(tmp_path: Path) -> None:
    need_program("git")
    done = build(checkout(tmp_path), "release", "--output", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (1, "")
    # git's own reason, which is the one that helps.
    assert done.stderr.startswith("build/release: git status: fatal: not a git repository")


@pytest.fixture(scope="module")
def components(pyz: Path) -> list[dict[str, Any]]:
    dist = Path(os.environ.get("DISLOCK_TEST_PYZ", ROOT / "dist" / "dislock.pyz")).parent
    return list(json.loads((dist / "dislock.cdx.json").read_text())["components"])


#: Those whose version nothing tells: made by the wheels' builder from a source that names itself nowhere.
UNTOLD = {"glibc-x86_64": {"openldap", "glibc"}, "glibc-aarch64": {"openldap"}}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_bundled_library_has_the_version_of_its_project(components: list[dict[str, Any]], platform: str) -> None:
    purls: dict[str, set[str]] = {}
    for component in components:
        if component["bom-ref"].startswith(f"{platform}/"):
            project, _, version = component["purl"].removeprefix("pkg:generic/").partition("@")
            purls.setdefault(project, set()).add(version)
    assert purls.keys() >= {"postgresql", "openldap", "openssl", "krb5", "cyrus-sasl", "keyutils", "e2fsprogs"}
    # One for all of the project's libraries, down to the release: vulnerabilities are listed by that.
    assert {project for project, versions in purls.items() if versions == {""}} == UNTOLD.get(platform, set())
    told = {project: versions for project, versions in purls.items() if versions != {""}}
    assert [p for p, found in told.items() if len(found) > 1 or not re.fullmatch(r"\d+(\.\d+)+", max(found))] == []


def test_alpines_packages_have_their_own_names(components: list[dict[str, Any]]) -> None:
    alpine = [c for c in components if c["bom-ref"].startswith("pkg:apk/")]
    names = {c["name"] for c in alpine}
    assert {"krb5-libs", "keyutils-libs", "libcrypto3"} <= names
    for component in alpine:
        assert re.fullmatch(r"\d[\w.]*-r\d+", component["version"])
        assert component["purl"] == f"pkg:apk/alpine/{component['name']}@{component['version']}"


def test_each_python_package_has_a_licence(components: list[dict[str, Any]]) -> None:
    packages = {c["name"].lower(): c for c in components if c["bom-ref"].startswith("pkg:pypi/")}
    assert len(packages) >= 9
    assert [name for name, c in packages.items() if not c.get("licenses")] == []
    assert packages["sqlalchemy"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert packages["psycopg-binary"]["licenses"] == [{"expression": "LGPL-3.0-only"}]
