"""The scripts in build/: what the wheel and the source distribution hold, what the bill of materials says of each
part, and how a machine is told what it lacks."""

from __future__ import annotations

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

from ci.environments import ROOT
from tests.artifact.contract import interpreters
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
    for name, umask in (("a", 0o022), ("other folder/b", 0o077)):
        place = tmp_path / name
        shutil.copytree(original, place)
        subprocess.run(
            [interpreters()[version].path, "build/wheel"], cwd=place, umask=umask, check=True, capture_output=True
        )
        made.append({path.name: path.read_bytes() for path in (place / "dist").iterdir()})
    assert made[0].keys() == made[1].keys()
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []
    [wheel] = (tmp_path / "a" / "dist").glob("dislock-*-py3-none-any.whl")
    [source] = (tmp_path / "a" / "dist").glob("dislock-*.tar.gz")
    assert len(made[0]) == 2
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


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("project", ["postgresql", "openldap", "openssl", "krb5", "cyrus-sasl", "keyutils"])
def test_a_bundled_library_has_the_version_of_its_project(
    components: list[dict[str, Any]], platform: str, project: str
) -> None:
    purls = {
        c["purl"]
        for c in components
        if c["bom-ref"].startswith(f"{platform}/") and c.get("purl", "").startswith(f"pkg:generic/{project}")
    }
    # One for all of the project's libraries, down to the release: vulnerabilities are listed by that.
    assert len(purls) == 1
    assert re.fullmatch(rf"pkg:generic/{project}@\d+\.\d+(\.\d+)*", purls.pop())


def test_alpines_packages_have_their_own_names(components: list[dict[str, Any]]) -> None:
    alpine = [c for c in components if c["bom-ref"].startswith("pkg:apk/")]
    names = {c["name"] for c in alpine}
    assert {"krb5-libs", "keyutils-libs", "libcrypto3"} <= names
    for component in alpine:
        assert re.fullmatch(r"\d[\w.]*-r\d+", component["version"])
        assert component["purl"] == f"pkg:apk/alpine/{component['name']}@{component['version']}"


def test_the_libraries_agree_with_alpines_packages(components: list[dict[str, Any]]) -> None:
    # What is read out of the machine code is what the package that it came from says.
    [told] = {c["version"].partition("-")[0] for c in components if c["name"] == "libldap" and c["bom-ref"][0] == "p"}
    read = {c["version"] for c in components if c["name"] == "libldap" and c["bom-ref"].startswith("musl-")}
    assert read == {told}


def test_each_python_package_has_a_licence(components: list[dict[str, Any]]) -> None:
    packages = {c["name"].lower(): c for c in components if c["bom-ref"].startswith("pkg:pypi/")}
    assert len(packages) >= 9
    assert [name for name, c in packages.items() if not c.get("licenses")] == []
    assert packages["sqlalchemy"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert packages["psycopg-binary"]["licenses"] == [{"expression": "LGPL-3.0-only"}]
