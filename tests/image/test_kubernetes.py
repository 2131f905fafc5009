"""The manifests and Dockerfiles of ``examples/kubernetes``: valid, consistent, and each one run as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.image import engine
from tests.image.engine import Containers, DockerClient
from tests.image.kubelet import Kubelet, Manifest, environment_of, pod_of
from tests.support.need import need

EXAMPLES = engine.ROOT / "examples" / "kubernetes"
#: The oldest version whose schemas have a pod failure policy right, and two newer ones.
VERSIONS = ("1.29", "1.31", "1.34")
MANIFESTS = sorted(EXAMPLES.glob("*/*.yaml"))
CRONJOBS = [path for path in MANIFESTS if path.name == "cronjob.yaml"]
#: A job image's program, where the example has none of its own: it shows that it was run, and as whom.
PROGRAM = b"#!/bin/sh\necho ran $0 $* as $(id -u), lock $DISLOCK_LOCK_KEY\n"


def read(path: Path) -> Manifest:
    try:
        import yaml
    except ImportError:
        need(False, "no PyYAML in this environment: pip install kubernetes-validate")
    return dict(yaml.safe_load(path.read_text()))


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.parent.name)
def manifest(request: pytest.FixtureRequest) -> Manifest:
    return read(request.param)


@pytest.fixture(params=CRONJOBS, ids=lambda path: path.parent.name)
def cronjob(request: pytest.FixtureRequest) -> Manifest:
    return read(request.param)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_schema(manifest: Manifest, version: str) -> None:
    try:
        import kubernetes_validate  # type: ignore[import-untyped]  # the package has no types
    except ImportError:
        need(False, "no Kubernetes schemas in this environment: pip install kubernetes-validate")
    kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifest, "spec": {**manifest["spec"], "scheduel": ""}}, version, strict=True)


def test_its_schedule_is_dislocks(cronjob: Manifest) -> None:
    [container] = pod_of(cronjob)["containers"]
    job = cronjob["spec"]["jobTemplate"]["spec"]
    variables = environment_of(container, {reference(container): "secret"})
    if "schedule" in variables.get("LOCK_STRATEGY", "schedule"):
        assert variables["CRON_SCHEDULE"] == cronjob["spec"]["schedule"]
        assert variables["CRON_TZ"] == cronjob["spec"]["timeZone"]
        if variables.get("LOCK_SLOT_CONSUMED_BY") == "success":
            # A retried pod runs the tick, as soon as a dead run's lease has expired.
            wait, pods = float(variables["LOCK_WAIT_SECONDS"]), job["backoffLimit"] + 1
            longest = wait - float(variables["RUN_LOCK_TTL_SECONDS"])
            assert pods > 1
            assert longest > 0
            assert job["activeDeadlineSeconds"] >= pods * (wait + longest)
        else:
            # A retried pod would find the slot taken, and end well.
            assert job["backoffLimit"] == 0
    assert variables["DATABASE_URL"] == "secret"


def test_its_times_fit(cronjob: Manifest) -> None:
    pod = pod_of(cronjob)
    variables = environment_of(pod["containers"][0], {reference(pod["containers"][0]): ""})
    if "lease" in variables["LOCK_STRATEGY"]:
        # What the command leaves behind has this long from the command's end; leaving takes dislock 5 s at most.
        assert pod["terminationGracePeriodSeconds"] >= float(variables["LOCK_KILL_GRACE_SECONDS"]) + 5
        assert float(variables["LOCK_KILL_GRACE_SECONDS"]) <= float(variables["RUN_LOCK_TTL_SECONDS"]) / 3
    minutes = re.match(r"\*/(\d+) ", cronjob["spec"]["schedule"])
    assert cronjob["spec"]["startingDeadlineSeconds"] < (int(minutes[1]) if minutes else 24 * 60) * 60


def test_it_is_hardened(manifest: Manifest) -> None:
    pod = pod_of(manifest)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def reference(container: Manifest) -> str:
    [found] = [v["valueFrom"]["secretKeyRef"] for v in container["env"] if "valueFrom" in v]
    return f"{found['name']}/{found['key']}"


@pytest.fixture
def from_image(image: str) -> str:
    """The example's own image on top of the default one."""
    tag = "dislock-test:example-image"
    engine.build(f"--build-arg=DISLOCK_IMAGE={image}", f"--tag={tag}", context=EXAMPLES / "image")
    return tag


@pytest.mark.integration
@pytest.mark.parametrize("example", ["image", "success"])
def test_on_the_image(containers: Containers, from_image: str, database_url: str, tmp_path: Path, example: str) -> None:
    manifest = read(EXAMPLES / example / "cronjob.yaml")
    images = {"registry.example.com/daily-report:1": from_image}
    with psycopg.connect(database_url) as owner:
        # The table of the locks is there; what the role may do is what tests/integration/examples looks at.
        [table] = re.findall(r"CREATE TABLE report .*;", (EXAMPLES / "image" / "setup.sql").read_text())
        owner.execute(table.encode())
    kubelet = Kubelet(containers, tmp_path, images, {"daily-report/database-url": database_url})
    ended = kubelet.run(pod_of(manifest))
    assert (ended.code, ended.out, ended.err) == (0, "written\n", "")
    assert sql(database_url, "SELECT total FROM report") == [(42,)]
    # A second pod for the same tick, from a retry, by hand or from another cluster.
    (tmp_path / "tmp").rmdir()
    ended = kubelet.run(pod_of(manifest))
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.integration
def test_copied_into_another_image(
    client: DockerClient, containers: Containers, runtime: str, database_url: str, tmp_path: Path
) -> None:
    base = engine.BASES["BASE_IMAGE"]
    job = engine.make_image(client, f"FROM {base}\nCOPY cleanup /usr/bin/cleanup\n", cleanup=PROGRAM)
    tag = "dislock-test:example-copy"
    arguments = (f"--build-arg=DISLOCK_RUNTIME={runtime}", f"--build-arg=JOB_IMAGE={job}")
    engine.build(*arguments, f"--tag={tag}", context=EXAMPLES / "copy")
    manifest = read(EXAMPLES / "copy" / "cronjob.yaml")
    images = {"registry.example.com/cleanup:7-dislock": tag}
    kubelet = Kubelet(containers, tmp_path, images, {"cleanup/database-url": database_url})
    ended = kubelet.run(pod_of(manifest))
    expected = "ran /usr/bin/cleanup --older-than 30d as 65532, lock cleanup\n"
    assert (ended.code, ended.out, ended.err) == (0, expected, "")


@pytest.mark.integration
def test_around_an_unchanged_image(
    client: DockerClient, containers: Containers, runtime: str, database_url: str, tmp_path: Path
) -> None:
    base = engine.BASES["BASE_IMAGE"]
    job = engine.make_image(client, f"FROM {base}\nCOPY importer /usr/bin/importer\n", importer=PROGRAM)
    manifest = read(EXAMPLES / "around" / "cronjob.yaml")
    images = {"registry.example.com/importer:3": job, "registry.example.com/dislock:0.1.0-runtime": runtime}
    kubelet = Kubelet(containers, tmp_path, images, {"importer/database-url": database_url})
    ended = kubelet.run(pod_of(manifest))
    assert (ended.code, ended.out, ended.err) == (0, "ran /usr/bin/importer --all as 65532, lock importer\n", "")


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()
