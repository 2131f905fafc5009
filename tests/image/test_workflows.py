"""The hosted runner's workflows: nothing floats, nothing can write unless it publishes."""

from __future__ import annotations

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.image import engine
from tests.image.test_kubernetes import read

WORKFLOWS = sorted((engine.ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE, WORKFLOW_OF_TESTS = (engine.ROOT / ".github" / "workflows" / f"{name}.yml" for name in ("release", "test"))
MACHINES = ("x86_64", "aarch64")


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def test_actions_are_pinned_to_commits(workflow: dict[str, Any]) -> None:
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action)] == []


def test_reading_is_all_that_a_job_may_do_unless_it_publishes(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    writing = {
        (name, what)
        for name, job in workflow["jobs"].items()
        for what, how in job.get("permissions", {}).items()
        if how == "write"
    }
    allowed = {"build": {"id-token", "attestations"}, "arm64": {"id-token", "attestations"}, "publish": {"contents"}}
    allowed["name"] = {"packages"}
    allowed["image"] = {"packages", "id-token", "attestations"}
    assert {(name, what) for name, what in writing if what not in allowed.get(name, set())} == set()


def test_scripts_that_are_called_are_there(workflow: dict[str, Any]) -> None:
    text = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    called = set(re.findall(r"(?m)^(?:sudo CI=true )?((?:ci|build)/\S+)", text))
    assert called
    assert [script for script in called if not (engine.ROOT / script).is_file()] == []


def test_every_kind_of_test_is_called() -> None:
    from ci.kinds import KINDS

    text = Path(engine.ROOT / ".github" / "workflows" / "test.yml").read_text()
    called = {kind for line in re.findall(r"run: (?:sudo CI=true )?ci/test (.*)", text) for kind in line.split()}
    assert called == set(KINDS)


def test_tests_that_need_root_are_run_by_root() -> None:
    # With CI=true, which a hosted runner sets, a test that lacks a right fails; its user is not root.
    steps = read(WORKFLOW_OF_TESTS)["jobs"]["server"]["steps"]
    [step] = [step for step in steps if "ci/test" in step.get("run", "")]
    assert step["run"].startswith("sudo CI=true ci/test ")


def test_a_tag_is_fetched_once(workflow: dict[str, Any]) -> None:
    # Asked for tags besides, checkout fetches the one that was pushed twice, into one name, which git refuses.
    used = [step for job in workflow["jobs"].values() for step in job["steps"] if "checkout@" in step.get("uses", "")]
    assert used
    assert [step for step in used if "fetch-tags" in step["with"]] == []


DOCKER = """#!/bin/sh
echo "$*" >>"$CALLS"
case $1 in
    login) cat >/dev/null ;;
    image) echo "ghcr.io/x/y@sha256:$3-$5" ;;
esac
"""


def docker_calls(place: Path, script: str, **environ: str) -> list[str]:
    """What a step asks of Docker."""
    (place / "docker").write_text(DOCKER)
    (place / "docker").chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "CALLS": str(place / "calls"), **environ}
    environment |= {"GITHUB_REPOSITORY": "Some-Owner/DisLock", "GITHUB_REF_NAME": "v1.2.3", "GITHUB_SHA": "abc"}
    environment |= {"GITHUB_ACTOR": "someone", "GH_TOKEN": "secret", "GITHUB_OUTPUT": str(place / "output")}
    # As a runner calls it for `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    subprocess.run(command, env=environment, check=True, timeout=60)
    return (place / "calls").read_text().splitlines()


@pytest.mark.parametrize("machine", MACHINES)
def test_images_are_made_of_the_released_archive_under_a_lower_case_name(tmp_path: Path, machine: str) -> None:
    jobs = read(RELEASE)["jobs"]
    assert machine in [one["machine"] for one in jobs["image"]["strategy"]["matrix"]["include"]]
    [step] = [step for step in jobs["image"]["steps"] if step.get("id") == "push"]
    lines = docker_calls(tmp_path, step["run"], MACHINE=machine)
    name = "ghcr.io/some-owner/dislock"
    output = tmp_path / "output"
    built = [line for line in lines if line.startswith("build ")]
    assert [re.findall(r"--target (\S+) --tag (\S+)", line) for line in built] == [
        [("image", f"{name}:1.2.3-{machine}")],
        [("runtime", f"{name}:1.2.3-runtime-{machine}")],
    ]
    assert all(f" --build-arg ARCHIVE=dist/dislock-linux-{machine}.tar.gz " in line for line in built)
    pushed = [line.removeprefix("push ") for line in lines if line.startswith("push ")]
    assert pushed == [f"{name}:1.2.3-{machine}", f"{name}:1.2.3-runtime-{machine}"]
    # What is attested is what was pushed.
    told = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert told["name"] == name
    assert {told[target].startswith("sha256:") for target in ("image", "runtime")} == {True}
    attested = [step["with"]["subject-name"] for step in jobs["image"]["steps"] if "attest" in step.get("uses", "")]
    assert attested == ["${{ steps.push.outputs.name }}"] * 2


def test_the_archive_that_images_are_made_of_gets_to_the_build() -> None:
    jobs = read(RELEASE)["jobs"]
    [download] = [step for step in jobs["image"]["steps"] if "download-artifact@" in step.get("uses", "")]
    assert download["with"] == {"name": "release-with-arm64", "path": "dist"}
    ignored = (engine.ROOT / ".dockerignore").read_text().splitlines()
    for machine in MACHINES:
        archive = f"dist/dislock-linux-{machine}.tar.gz"
        assert any(line.startswith("!") and fnmatch(archive, line[1:]) for line in ignored)
    assert "ARG ARCHIVE=" in (engine.ROOT / "Dockerfile").read_text().splitlines()


def test_one_name_is_for_both_machines(tmp_path: Path) -> None:
    jobs = read(RELEASE)["jobs"]
    [step] = jobs["name"]["steps"]
    name = "ghcr.io/some-owner/dislock:1.2.3"
    calls = [line for line in docker_calls(tmp_path, step["run"]) if line.startswith("buildx ")]
    assert calls == [
        f"buildx imagetools create --tag {tag} {tag}-x86_64 {tag}-aarch64" for tag in (name, f"{name}-runtime")
    ]


def test_the_files_of_both_machines_are_published() -> None:
    jobs = read(RELEASE)["jobs"]
    runs = {name: "\n".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert jobs["arm64"]["runs-on"].endswith("-arm")
    assert "dislock-linux-aarch64" in runs["arm64"]
    assert ">>SHA256SUMS" in runs["arm64"]
    [download] = [step for step in jobs["publish"]["steps"] if "download-artifact@" in step.get("uses", "")]
    assert download["with"]["name"] == "release-with-arm64"
