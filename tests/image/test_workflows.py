"""The hosted runner's workflows: nothing floats, nothing can write unless it publishes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.image import engine
from tests.image.test_kubernetes import read

WORKFLOWS = sorted((engine.ROOT / ".github" / "workflows").glob("*.yml"))


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
    allowed = {"build": {"id-token", "attestations"}, "publish": {"contents"}}
    allowed["image"] = {"packages", "id-token", "attestations"}
    assert {(name, what) for name, what in writing if what not in allowed.get(name, set())} == set()


def test_scripts_that_are_called_are_there(workflow: dict[str, Any]) -> None:
    text = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    called = set(re.findall(r"(?m)^((?:ci|build)/\S+)", text))
    assert called
    assert [script for script in called if not (engine.ROOT / script).is_file()] == []


def test_every_kind_of_test_is_called() -> None:
    from ci.kinds import KINDS

    text = Path(engine.ROOT / ".github" / "workflows" / "test.yml").read_text()
    called = {kind for line in re.findall(r"run: ci/test (.*)", text) for kind in line.split()}
    assert called == set(KINDS)
