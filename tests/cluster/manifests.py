"""A small pod for tests, within restricted pod security."""

from collections.abc import Sequence

from cluster.kubectl import Object

RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def task(name: str, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> Object:
    """Make a pod that runs once; without `command` it runs what the image says."""
    container = {"name": "task", "image": image, "args": list(args), "securityContext": RESTRICTED}
    if command:
        container["command"] = list(command)
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
