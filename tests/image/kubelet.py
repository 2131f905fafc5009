"""As much of a kubelet as a CronJob of ours needs: one pod of its template, run by a Docker engine.

It carries out what decides whether a manifest works: images, commands, environment, users, the read-only root, dropped
capabilities, memory limits, and volumes that containers share. It refuses what it does not know, so that a field added
to a manifest is not passed over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.image.engine import Containers, Ended

Manifest = dict[str, Any]
POD_FIELDS = {
    *("restartPolicy", "terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks"),
    *("securityContext", "initContainers", "containers", "volumes"),
}
CONTAINER_FIELDS = {"name", "image", "command", "args", "env", "securityContext", "resources", "volumeMounts"}


def pod_of(manifest: Manifest) -> Manifest:
    """What a CronJob starts, or the pod itself."""
    if manifest["kind"] == "Pod":
        return dict(manifest["spec"])
    return dict(manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"])


def environment_of(container: Manifest, secrets: Mapping[str, str]) -> dict[str, str]:
    """Its variables; a secret's are looked up by ``name/key``."""
    found = {}
    for variable in container.get("env", []):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            reference = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = secrets[f"{reference['name']}/{reference['key']}"]
    return found


class Kubelet:
    """Runs pods, with the images that a test names in place of the manifest's."""

    def __init__(
        self, containers: Containers, folder: Path, images: Mapping[str, str], secrets: Mapping[str, str]
    ) -> None:
        self._containers = containers
        self._folder = folder
        self._images = images
        self._secrets = secrets

    def run(self, pod: Manifest) -> Ended:
        """Its init containers, which must end well, and then its one container."""
        assert pod.keys() <= POD_FIELDS
        volumes = {}
        for volume in pod.get("volumes", []):
            assert volume.keys() == {"name", "emptyDir"}
            # Empty for each pod, and open to every user of it.
            place = self._folder / volume["name"]
            place.mkdir()
            place.chmod(0o777)
            volumes[volume["name"]] = place
        for container in pod.get("initContainers", []):
            ended = self._run(container, pod, volumes)
            assert (ended.code, ended.err) == (0, "")
        [job] = pod["containers"]
        return self._run(job, pod, volumes)

    def _run(self, container: Manifest, pod: Manifest, volumes: Mapping[str, Path]) -> Ended:
        assert container.keys() <= CONTAINER_FIELDS
        user, own = pod["securityContext"], container["securityContext"]
        options: dict[str, Any] = {
            "environment": environment_of(container, self._secrets),
            "user": f"{user['runAsUser']}:{user['runAsGroup']}",
            "read_only": own["readOnlyRootFilesystem"],
            "cap_drop": own["capabilities"]["drop"],
            "security_opt": [] if own["allowPrivilegeEscalation"] else ["no-new-privileges"],
            "mem_limit": container["resources"]["limits"]["memory"].removesuffix("i"),
            "volumes": {
                str(volumes[mount["name"]]): {
                    "bind": mount["mountPath"],
                    "mode": "ro" if mount.get("readOnly") else "rw",
                }
                for mount in container.get("volumeMounts", [])
            },
        }
        if "command" in container:
            options["entrypoint"] = container["command"]
        return self._containers.run(self._images[container["image"]], *container.get("args", []), **options)
