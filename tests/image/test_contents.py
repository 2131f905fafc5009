"""What is in the images, and what must not be."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.image import engine
from tests.image.engine import DockerClient, files_of

USER = 65532
#: What the engine puts into every container, and a container's private /tmp.
NOT_OURS = re.compile(r"(\.dockerenv|(proc|sys|dev|tmp)(/.*)?|etc/(hosts|hostname|resolv\.conf|mtab))$")
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\n"

Files = dict[str, tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def in_image(client: DockerClient, image: str) -> Files:
    return {member.name.rstrip("/"): (member, content) for member, content in files_of(client, image)}


@pytest.fixture(scope="module")
def in_runtime(client: DockerClient, runtime: str) -> Files:
    return {member.name.rstrip("/"): (member, content) for member, content in files_of(client, runtime)}


@pytest.fixture(params=["in_image", "in_runtime"])
def files(request: pytest.FixtureRequest) -> Files:
    return {
        name: found for name, found in dict(request.getfixturevalue(request.param)).items() if not NOT_OURS.match(name)
    }


def can_write(member: tarfile.TarInfo) -> bool:
    if member.issym():
        return False
    mode = {USER: 0o200}.get(member.uid, 0) | {USER: 0o020}.get(member.gid, 0) | 0o002
    return member.uid == USER or bool(member.mode & mode)


def test_its_user_can_write_nothing(files: Files) -> None:
    assert "dislock/dislock" in files
    assert [name for name, (member, _) in files.items() if can_write(member)] == []


def test_group_0_can_write_nothing(files: Files) -> None:
    # Some clusters give every container a user id of their own, and group 0.
    assert [n for n, (m, _) in files.items() if m.gid == 0 and m.mode & 0o020 and not m.issym()] == []


def test_nothing_is_setuid_or_setgid(files: Files) -> None:
    assert [name for name, (member, _) in files.items() if member.mode & 0o6000] == []


def test_everybody_can_read_and_start_it(files: Files) -> None:
    ours = {name: member for name, (member, _) in files.items() if name.startswith("dislock/")}
    assert [n for n, m in ours.items() if not m.issym() and m.mode & 0o004 == 0] == []
    assert [n for n in ("dislock/dislock", "dislock/bin/python3") if ours[n].mode & 0o111 != 0o111] == []


def test_certificates_are_the_public_ones(files: Files) -> None:
    assert [n for n, (_, content) in files.items() if CERTIFICATE in content] == ["dislock/ssl/cert.pem"]
    trusted = files["dislock/ssl/cert.pem"][1]
    assert trusted.count(CERTIFICATE) > 100
    own = [path.read_bytes() for path in Path("/usr/local/share/ca-certificates").glob("**/*.crt")]
    bodies = [text.partition(CERTIFICATE)[2].replace(b"\r", b"")[:200] for text in own]
    assert [body for body in bodies if body and body in trusted.replace(b"\r", b"")] == []


def test_nothing_names_the_build_machine(files: Files) -> None:
    # pip's settings and names of package indexes are the build machine's affair.
    assert [n for n, (_, content) in files.items() if b"index-url" in content and n.endswith((".conf", ".ini"))] == []
    assert [n for n in files if "/root/" in f"/{n}/" and n != "root"] == []


def test_licences_and_a_bill_of_materials_are_in_it(files: Files) -> None:
    assert b'"CycloneDX"' in files["dislock/bill-of-materials.cdx.json"][1]
    assert {"dislock/licenses/libc6", "dislock/licenses/libssl3t64"} <= files.keys()


def test_the_bill_of_materials_names_each_library_in_wheels(files: Files) -> None:
    bill = json.loads(files["dislock/bill-of-materials.cdx.json"][1])
    components = bill["components"]
    assert len({c["bom-ref"] for c in components}) == len(components)
    hashes = {h["content"] for c in components for h in c.get("hashes", [])}
    bundled = {name: content for name, (_, content) in files.items() if "/psycopg_binary.libs/" in name}
    assert len(bundled) > 10
    assert [name for name, content in bundled.items() if hashlib.sha256(content).hexdigest() not in hashes] == []
    purls = {c.get("purl", "") for c in components}
    # Which OpenLDAP it is, nothing tells.
    assert "pkg:generic/openldap" in purls
    for project in ("openssl", "postgresql", "krb5", "cyrus-sasl", "keyutils", "e2fsprogs", "python"):
        assert any(re.fullmatch(rf"pkg:generic/{project}@\d+\.\d+[\w.]*", purl) for purl in purls), project
    packages = [c for c in components if c["bom-ref"].startswith("pkg:pypi/")]
    assert {"dislock", "psycopg", "psycopg-binary", "certifi", "tzdata"} <= {c["name"] for c in packages}
    assert [c["name"] for c in packages if not c.get("licenses") or c["name"] == "ziglang"] == []


def test_scanners_find_the_distributions_packages(in_image: Files) -> None:
    release = in_image["etc/os-release"][1].decode()
    assert re.search(r"^ID=debian$", release, re.MULTILINE)
    bill = json.loads(in_image["usr/share/dislock/bill-of-materials.cdx.json"][1])
    debian = {c["name"]: c for c in bill["components"] if c.get("purl", "").startswith("pkg:deb/")}
    assert {"libc6", "libssl3t64"} <= debian.keys()
    for name, component in debian.items():
        record = in_image[f"var/lib/dpkg/status.d/{name}"][1].decode()
        assert f"\nVersion: {component['version']}\n" in record
        assert re.search(r"\?arch=\w+&distro=debian-\d+$", component["purl"])
    assert any(c.get("purl", "").startswith("pkg:generic/busybox@") for c in bill["components"])


def test_it_is_small(client: DockerClient, image: str, runtime: str, archive: Path) -> None:
    def megabytes(name: str) -> float:
        return float(client.images.get(name).attrs["Size"]) / 1e6

    assert megabytes(image) <= 65
    assert megabytes(runtime) <= 60
    assert archive.stat().st_size / 1e6 <= 22


def test_the_archive_holds_the_same_folder(in_runtime: Files, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = list(tar)
        packed = {member.name: (member.mode, file.read()) for member in members if (file := tar.extractfile(member))}
    ours = {name: found for name, found in in_runtime.items() if name.startswith("dislock/") and found[0].isreg()}
    expected = {name: (member.mode & 0o7777, content) for name, (member, content) in ours.items()}
    # Names only: to show the difference of fifty megabytes takes pytest longer than any patience.
    assert [name for name in sorted({*packed, *expected}) if packed.get(name) != expected.get(name)] == []
    # Whoever unpacks it as root makes it root's.
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert [member.name for member in members if member.mode & 0o022] == []


def test_an_image_from_an_archive_holds_that_archive(client: DockerClient, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "changed").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path / "changed"], check=True)
    # Something that no build makes.
    (tmp_path / "changed" / "dislock" / "of-this-archive").write_text("and of no other")
    context = tmp_path / "context"
    for name in ("Dockerfile", ".dockerignore", "build"):
        copy = shutil.copytree if (engine.ROOT / name).is_dir() else shutil.copy
        context.mkdir(exist_ok=True)
        copy(engine.ROOT / name, context / name)
    (context / "dist").mkdir()
    changed = "dist/dislock-linux-x86_64.tar.gz"
    subprocess.run(["tar", "-czf", context / changed, "-C", tmp_path / "changed", "dislock"], check=True)
    bases = [f"--build-arg={name}={image}" for name, image in engine.BASES.items()]
    tag = "dislock-test:from-archive"
    engine.build(f"--build-arg=ARCHIVE={changed}", *bases, f"--tag={tag}", context=context)
    inside = {member.name.rstrip("/"): content for member, content in files_of(client, tag) if member.isreg()}
    expected = {
        str(path.relative_to(tmp_path / "changed")): path.read_bytes()
        for path in (tmp_path / "changed").rglob("*")
        if path.is_file()
    }
    ours = {name for name in inside if name.startswith("dislock/")}
    assert ours == expected.keys()
    assert [name for name in ours if inside[name] != expected[name]] == []
    assert {"usr/bin/python3", "etc/passwd"} <= inside.keys()


@pytest.mark.parametrize("target", ["image", "runtime"])
def test_how_it_starts(client: DockerClient, target: str, request: pytest.FixtureRequest) -> None:
    config = client.images.get(request.getfixturevalue(target)).attrs["Config"]
    assert config["Entrypoint"] == ["/dislock/dislock"]
    assert config["User"] == f"{USER}:{USER}"
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["version"], labels["revision"], labels["licenses"]) == ("1.2.3", "abc", "MIT")
    assert labels["title"]
    assert labels["description"]


def test_its_user_has_a_name_and_a_group(in_image: Files) -> None:
    assert re.search(rb"^dislock:x:65532:65532:", in_image["etc/passwd"][1], re.MULTILINE)
    assert re.search(rb"^dislock:x:65532:$", in_image["etc/group"][1], re.MULTILINE)
    assert b"root:x:0:0:" in in_image["etc/passwd"][1]
