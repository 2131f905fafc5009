"""What tests of the image stand on: the images, built once from this checkout, and containers that are cleared up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.image import engine
from tests.image.engine import Containers, DockerClient

IMAGE = "dislock-test:image"
RUNTIME = "dislock-test:runtime"


@pytest.fixture(scope="session")
def client() -> Iterator[DockerClient]:
    with closing(engine.connect()) as connected:
        yield connected


@pytest.fixture(scope="session")
def built(client: DockerClient) -> None:
    """The images, from this checkout as it is; DISLOCK_TEST_IMAGES=keep takes those of the last run instead."""
    if os.environ.get("DISLOCK_TEST_IMAGES") == "keep":
        return
    for base in engine.BASES.values():
        engine.have(client, base)
    engine.make_zipapp()
    engine.build_own("image", f"--tag={IMAGE}")
    engine.build_own("runtime", f"--tag={RUNTIME}")


@pytest.fixture(scope="session")
def image(built: None) -> str:
    """The default image."""
    return IMAGE


@pytest.fixture(scope="session")
def runtime(built: None) -> str:
    """The image with the folder alone."""
    return RUNTIME


@pytest.fixture(scope="session")
def archive(built: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive for hosts, as the image's build makes it."""
    output = tmp_path_factory.mktemp("archive")
    engine.build_own("archive", f"--output={output}")
    [path] = output.glob("*.tar.gz")
    return path


@pytest.fixture(scope="session")
def folder(client: DockerClient, runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder on this host, in a place with a blank and a letter beyond ASCII in its name."""
    place = tmp_path_factory.mktemp("unpacked") / "läuft hier"
    place.mkdir()
    packed = place / "packed.tar"
    container = client.containers.create(runtime)
    try:
        with packed.open("wb") as file:
            file.writelines(container.get_archive("/dislock")[0])
    finally:
        container.remove()
    subprocess.run(["tar", "-xf", packed, "-C", place], check=True)
    return place / "dislock"


@pytest.fixture
def containers(client: DockerClient) -> Iterator[Containers]:
    with closing(Containers(client)) as of_this_test:
        yield of_this_test


@pytest.fixture
def variables(database_url: str) -> dict[str, str]:
    """The settings of a lease on a database of the test's own."""
    return {"DATABASE_URL": database_url, "LOCK_KEY": "job", "LOCK_STRATEGY": "lease"}
