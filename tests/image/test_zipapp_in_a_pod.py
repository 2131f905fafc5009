"""The one file in an image of somebody's own, its cache made in the build, under a cluster's strictest settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image import engine
from tests.image.engine import Containers, DockerClient

RECIPE = """
FROM {base}
COPY dislock.pyz /usr/local/bin/
ENV DISLOCK_CACHE=/var/cache/dislock-all
RUN dislock.pyz --unpack && chmod -R go+rX $DISLOCK_CACHE
"""
#: An emptyDir as Kubernetes mounts it, without and with fsGroup; /dev/shm is one of the places for a temporary folder.
MODES = ("0777", "2777")


@pytest.fixture(scope="module")
def with_cache(client: DockerClient) -> str:
    engine.have(client, engine.BASES["BUILD_IMAGE"])
    if not (engine.ROOT / "dist" / "dislock.pyz").exists():
        engine.make_zipapp()
    content = Path(engine.ROOT / "dist" / "dislock.pyz").read_bytes()
    return engine.make_image(client, RECIPE.format(base=engine.BASES["BUILD_IMAGE"]), **{"dislock.pyz": content})


@pytest.mark.parametrize("user", ["0", "1000:1000", "54321:0"])
@pytest.mark.parametrize("mode", MODES)
def test_it_needs_nothing_writable(
    containers: Containers, with_cache: str, variables: dict[str, str], mode: str, user: str
) -> None:
    hardened = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "user": user,
        "tmpfs": {"/tmp": f"mode={mode}", "/dev/shm": "noexec,mode=1777"},
    }
    command = ["dislock.pyz", "DATABASE_URL", "sh", "-c", "echo ran; ls -A /tmp"]
    ran = containers.run(with_cache, *command, environment=variables, entrypoint=[], **hardened)
    assert (ran.code, ran.out, ran.err) == (0, "ran\n", "")
