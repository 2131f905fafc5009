"""The command line contract, on the command that ``--artifact`` names.

The tests here use nothing but a command's first words, an environment, a database URL and what a shell can do. A test's
id names the artifact that it ran on: ``[installed]``, ``[zipapp-3.10]``, ``[folder]``, ``[image]``. The zipapp runs all
of them on the oldest and the newest Python, and on the others those marked ``short``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from tests.artifact.conftest import open_folder, pyz, used_caches
from tests.artifact.pythons import ends, interpreters, there
from tests.artifact.support import links
from tests.image import engine
from tests.image.conftest import built, client, folder, image, runtime
from tests.image.engine import DockerClient
from tests.support.contract import Dislock, dislock, lease

__all__ = [
    "built", "client", "dislock", "folder", "image", "lease", "open_folder", "pyz", "runtime", "used_caches",
]  # fmt: skip

STRATEGIES = ("schedule", "lease", "schedule,lease")
#: Hands on the environment that it was started with, and no more. An empty command line must stay empty, which it
#: does only when the entrypoint is given.
DOCKER_RUN = """#!/bin/sh
for name in $({env} | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $name in PWD | _ | SHLVL) ;; *) set -- "--env=$name" "$@" ;; esac
done
exec {docker} run --rm --interactive --network=host --label={label} --entrypoint=/dislock/dislock "$@"
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that asks for the command, on each artifact; one for ``each`` strategy, with each of them.

    The Pythons that run the short contract try both locks at once: an emulated start takes seconds, and other tests are
    of one lock each.
    """
    if "artifact" not in metafunc.fixturenames:
        return
    artifacts = whole = [metafunc.config.getoption("--artifact")]
    if whole == ["zipapp"]:
        artifacts = whole = [f"zipapp-{name}" for name in ends()]
        if metafunc.definition.get_closest_marker("short"):
            artifacts = [f"zipapp-{name}" for name in there()]
    if "one_strategy" not in metafunc.fixturenames:
        metafunc.parametrize("artifact", artifacts)
        return
    pairs = [(a, strategy) for a in artifacts for strategy in (STRATEGIES if a in whole else STRATEGIES[-1:])]
    metafunc.parametrize(("artifact", "one_strategy"), pairs)


@pytest.fixture
def bare(artifact: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dislock]:
    """The command under test without a database, in an environment with nothing but PATH and a place for a cache."""
    environment = {"PATH": os.environ["PATH"]}
    what, _, python = artifact.partition("-")
    if what == "installed":
        command = [sys.executable, "-m", "dislock"]
    elif what == "zipapp":
        command = [str(request.getfixturevalue("pyz"))]
        folder = request.getfixturevalue("open_folder") / python
        environment["PATH"] = links(folder, interpreters()[python].path)
        environment["XDG_CACHE_HOME"] = str(request.getfixturevalue("used_caches"))
    elif what == "folder":
        command = [str(request.getfixturevalue("folder") / "dislock")]
    else:
        command = request.getfixturevalue("docker_run")
    with closing(Dislock(command, "", tmp_path, environment)) as tested:
        yield tested


@pytest.fixture
def docker_run(client: DockerClient, image: str, tmp_path: Path) -> Iterator[list[str]]:
    """``docker run`` is the command, and PID 1 is the program."""
    label = f"dislock-test={uuid4().hex}"
    script = tmp_path / "docker-run"
    script.write_text(DOCKER_RUN.format(env="/usr/bin/env", docker=engine.client_program(), label=label))
    script.chmod(0o755)
    yield [str(script), image]
    for container in client.containers.list(all=True, filters={"label": label}):
        container.remove(force=True)


@pytest.fixture
def on_this_host(artifact: str) -> None:
    """Skips what can only be seen where the command is a process of this host, with its files and descriptors."""
    if artifact == "image":
        pytest.skip("seen only where the command runs as a process of this host")


@pytest.fixture
def each(dislock: Dislock, one_strategy: str) -> Dislock:
    """The command with each strategy in turn."""
    dislock.environment["LOCK_STRATEGY"] = one_strategy
    return dislock
