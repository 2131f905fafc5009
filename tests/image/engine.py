"""A Docker engine: building the project's images, running containers, and clearing up after them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import docker  # type: ignore[import-untyped]  # the package has no types
from docker.errors import APIError, DockerException, ImageNotFound  # type: ignore[import-untyped]  # the same
from docker.models.containers import Container  # type: ignore[import-untyped]  # the same

from tests.support.need import need

DockerClient: TypeAlias = "docker.DockerClient"
ROOT = Path(__file__).parents[2]
BASES = {
    "BUILD_IMAGE": os.environ.get("BUILD_IMAGE", "python:3.13-slim-trixie"),
    "BASE_IMAGE": os.environ.get("BASE_IMAGE", "busybox:stable-musl"),
}
SECONDS = 60
BUILD_SECONDS = 900


def connect() -> DockerClient:
    try:
        client = docker.from_env(timeout=SECONDS)
        client.ping()
    except DockerException:
        need(False, "no Docker engine answers: start one, or set DOCKER_HOST")
    return client


def have(client: DockerClient, image: str) -> None:
    """Skips where an image is neither here nor to be had."""
    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except APIError:
            need(False, f"no image {image}, and no registry that has it")


def client_program() -> str:
    """The first docker on PATH that can build with BuildKit; one may lie there without the plug-in that it takes."""
    for folder in os.environ["PATH"].split(os.pathsep):
        path = shutil.which("docker", path=folder)
        if path and run([path, "build", "--help"]).returncode == 0:
            return path
    need(False, "no docker on PATH that can build with BuildKit: apt install docker.io, or docker-buildx")
    raise AssertionError


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)


def build(*options: str, context: Path = ROOT) -> None:
    """``docker build`` with the network of this machine, on which the package index may depend."""
    done = run([client_program(), "build", "--network=host", *options, str(context)])
    assert done.returncode == 0, done.stderr[-4000:]


def build_own(target: str, *options: str) -> None:
    """One target of the project's own Dockerfile."""
    bases = [f"--build-arg={name}={image}" for name, image in BASES.items()]
    build(f"--target={target}", *bases, "--build-arg=VERSION=1.2.3", "--build-arg=REVISION=abc", *options)


def make_zipapp() -> None:
    """The file that goes into the images, always from this checkout as it is now."""
    made = run([sys.executable, str(ROOT / "build" / "pyz")])
    assert made.returncode == 0, made.stderr[-4000:]


def make_image(client: DockerClient, dockerfile: str, **files: bytes) -> str:
    """An image from a Dockerfile's text; in it ``COPY name`` finds the files, which are executable."""
    # By its content, so that images of earlier runs do not pile up.
    digest = hashlib.sha256(repr((dockerfile, sorted(files.items()))).encode()).hexdigest()
    tag = f"dislock-test-job:{digest[:12]}"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, content in {"Dockerfile": dockerfile.encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True)
    return tag


def files_of(client: DockerClient, image: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """All that a container of this image sees, with the content of regular files."""
    container = client.containers.create(image, command=["none"], entrypoint=["/none"])
    try:
        whole = io.BytesIO(b"".join(container.export()))
        with tarfile.open(fileobj=whole) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                yield member, file.read() if file else b""
    finally:
        container.remove(force=True)


@dataclass
class Ended:
    """How a container ended."""

    code: int
    out: str
    err: str


@dataclass
class Containers:
    """Containers of one test: on the host's network unless told otherwise, gone when it is over."""

    client: DockerClient
    _started: list[Container] = field(default_factory=list)

    def start(self, image: str, *argv: str, **options: Any) -> Container:
        """``docker run -d``; the options are those of the ``docker`` package."""
        options = {"network_mode": "host", **options}
        # An empty list would leave the image's own command in force.
        container = self.client.containers.create(image, command=list(argv) or None, **options)
        self._started.append(container)
        container.start()
        return container

    def end(self, container: Container) -> Ended:
        code = container.wait(timeout=SECONDS)["StatusCode"]
        out, err = (container.logs(stdout=out, stderr=not out).decode() for out in (True, False))
        return Ended(code, out, err)

    def run(self, image: str, *argv: str, **options: Any) -> Ended:
        return self.end(self.start(image, *argv, **options))

    def close(self) -> None:
        for container in self._started:
            container.remove(force=True, v=True)
