"""The folder in other people's images: without a C library, with musl, with another glibc, without a shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.image import engine
from tests.image.engine import Containers, DockerClient
from tests.support.need import need, need_program

pytestmark = pytest.mark.integration


@pytest.fixture
def installed(containers: Containers, runtime: str, tmp_path: Path) -> Path:
    """The folder as an init container installs it, for a user who is not the job's."""
    place = tmp_path / "bin"
    place.mkdir()
    place.chmod(0o777)
    options = {"read_only": True, "cap_drop": ["ALL"], "user": "1000700000:0", "network_mode": "none"}
    volumes = {str(place): {"bind": "/somewhere", "mode": "rw"}}
    ended = containers.run(runtime, "--install", "/somewhere", volumes=volumes, **options)
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    return place


def mounted(place: Path) -> dict[str, dict[str, str]]:
    return {str(place): {"bind": "/opt/put here", "mode": "ro"}}


def test_no_c_library(containers: Containers, installed: Path, variables: dict[str, str]) -> None:
    command = ("/opt/put here/dislock", "DATABASE_URL", "sh", "-c", "echo ran; ls /lib /usr/lib 2>/dev/null || true")
    base = engine.BASES["BASE_IMAGE"]
    ended = containers.run(base, *command, environment=variables, volumes=mounted(installed), user="65532:65532")
    assert (ended.code, ended.out, ended.err) == (0, "ran\n", "")


def test_another_glibc(containers: Containers, installed: Path, variables: dict[str, str]) -> None:
    # Whatever the image sets for its own programs is theirs alone, and reaches them as it was set.
    given = {**variables, "LD_LIBRARY_PATH": "/usr/lib/python3.13", "PYTHONHOME": "/usr", "LD_PRELOAD": "libz.so.1"}
    code = "import os, sys; print(sys.executable, *(os.environ[n] for n in ('LD_LIBRARY_PATH', 'LD_PRELOAD')))"
    command = ("/opt/put here/dislock", "DATABASE_URL", "/usr/bin/python3", "-c", code)
    image = engine.BASES["BUILD_IMAGE"]
    program = containers.run(image, "-c", "import sys; print(sys.executable)", entrypoint=["python3"]).out.strip()
    given["PYTHONHOME"] = str(Path(program).parents[1])
    ended = containers.run(
        image,
        *(program if word == "/usr/bin/python3" else word for word in command),
        environment=given,
        volumes=mounted(installed),
    )
    assert (ended.code, ended.out) == (0, f"{program} /usr/lib/python3.13 libz.so.1\n")
    assert ended.err == ""


def test_musl(
    client: DockerClient, containers: Containers, installed: Path, variables: dict[str, str], tmp_path: Path
) -> None:
    need_program("apt-get", "apt")
    done = subprocess.run(["apt-get", "download", "musl"], cwd=tmp_path, capture_output=True, text=True, check=False)
    need(done.returncode == 0, "Debian's package musl cannot be downloaded: apt-get update")
    [package] = tmp_path.glob("musl_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(tmp_path / "musl")], check=True)
    loader = next((tmp_path / "musl").rglob("libc.so")).read_bytes()
    dockerfile = f"FROM {engine.BASES['BASE_IMAGE']}\nCOPY loader /lib/ld-musl-x86_64.so.1\n"
    image = engine.make_image(client, dockerfile, loader=loader)
    # musl's loader is a program as well, which says what it is.
    command = ("/opt/put here/dislock", "DATABASE_URL", "/lib/ld-musl-x86_64.so.1")
    given = {**variables, "LD_PRELOAD": "/lib/ld-musl-x86_64.so.1", "LD_LIBRARY_PATH": "/lib"}
    ended = containers.run(image, *command, environment=given, volumes=mounted(installed))
    assert ended.code == 1
    assert ended.err.startswith("musl libc (x86_64)")


def test_no_shell_and_nothing_else(
    client: DockerClient, containers: Containers, runtime: str, variables: dict[str, str]
) -> None:
    engine.have(client, engine.BASES["BASE_IMAGE"])
    dockerfile = (
        f"FROM {runtime} AS dislock\nFROM {engine.BASES['BASE_IMAGE']} AS tools\nFROM scratch\n"
        "COPY --from=tools /bin/busybox /busybox\nCOPY --from=dislock /dislock /opt/lock\n"
        'ENTRYPOINT ["/opt/lock/dislock", "DATABASE_URL"]\nCMD ["/busybox", "ls", "/", "/opt"]\n'
    )
    image = engine.make_image(client, dockerfile)
    ended = containers.run(image, environment=variables, user="12345:12345", read_only=True)
    assert (ended.code, ended.err) == (0, "")
    assert {"busybox", "opt", "lock"} <= set(ended.out.split())
    assert "bin" not in ended.out.split()


def test_an_interrupted_installation_is_made_good(
    containers: Containers, runtime: str, installed: Path, variables: dict[str, str]
) -> None:
    (installed / "dislock").unlink()
    (installed / "lib" / "libc.so.6").write_bytes(b"half")
    volumes = {str(installed): {"bind": "/somewhere", "mode": "rw"}}
    ended = containers.run(runtime, "--install", "/somewhere", volumes=volumes, user="1000700000:0")
    assert (ended.code, ended.err) == (0, "")
    command = ("/opt/put here/dislock", "DATABASE_URL", "echo", "ran")
    base = engine.BASES["BASE_IMAGE"]
    assert containers.run(base, *command, environment=variables, volumes=mounted(installed)).out == "ran\n"


@pytest.mark.parametrize("argv", [(), ("--help",), ("/a", "/b"), ("/dislock/inside",)])
def test_installing_nowhere(containers: Containers, runtime: str, argv: tuple[str, ...]) -> None:
    ended = containers.run(runtime, "--install", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1


def test_installing_where_nothing_can_be_written(containers: Containers, runtime: str) -> None:
    ended = containers.run(runtime, "--install", "/somewhere", read_only=True)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("dislock: cannot install into /somewhere: ")
