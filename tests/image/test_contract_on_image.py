"""The same contract on a container of the default image: ``docker run`` is the command, and PID 1 is the program.

Without the tests of usage and settings, which end before anything that a container could change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.image import engine
from tests.image.engine import DockerClient

# ruff: noqa: F403 - the contract's tests and their fixtures are collected from here once more, for another command
from tests.integration.cli import test_runs as runs
from tests.integration.cli.test_ends import *
from tests.integration.cli.test_runs import *
from tests.integration.cli.test_waiting import *
from tests.support.contract import Dislock, bare, dislock, lease, on_this_host

__all__ = ["bare", "dislock", "lease", "on_this_host"]
pytestmark = pytest.mark.integration

#: Hands on the environment that it was started with, and no more. An empty command line must stay empty, which it
#: does only when the entrypoint is given.
RUN = """#!/bin/sh
for name in $({env} | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $name in PWD | _ | SHLVL) ;; *) set -- "--env=$name" "$@" ;; esac
done
exec {docker} run --rm --interactive --network=host --label={label} --entrypoint=/dislock/dislock "$@"
"""


@pytest.fixture
def shares_host() -> bool:
    return False


@pytest.fixture
def dislock_command(client: DockerClient, image: str, tmp_path: Path) -> Iterator[list[str]]:
    label = f"dislock-test={uuid4().hex}"
    script = tmp_path / "docker-run"
    script.write_text(RUN.format(env="/usr/bin/env", docker=engine.client_program(), label=label))
    script.chmod(0o755)
    yield [str(script), image]
    for container in client.containers.list(all=True, filters={"label": label}):
        container.remove(force=True)


class TestCommand(runs.TestCommand):  # type: ignore[no-redef]  # in place of the one imported above
    """An engine is asked in JSON, so a container's arguments are text; on the folder they are tried byte by byte."""

    def test_its_arguments_arrive_byte_by_byte(self, each: Dislock) -> None:
        words = ["", " ", "a b", "é", "--help", "--", "$HOME", "*", "'", "two\nlines"]
        assert each.run("DATABASE_URL", "--", "printf", "<%s>", *words).out == "".join(f"<{word}>" for word in words)
