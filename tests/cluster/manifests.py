"""Small workloads for tests, each within restricted pod security."""

from collections.abc import Sequence
from typing import Any

from cluster.kubectl import Object

RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
SERVE = ["python3", "-m", "http.server", "8000"]


def pod_spec(image: str, command: Sequence[str]) -> dict[str, Any]:
    """Make the spec of a pod that is Ready when port 8000 answers."""
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    container = {
        "name": "web",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "workingDir": "/tmp",
        "readinessProbe": probe,
        "securityContext": RESTRICTED,
    }
    return {"terminationGracePeriodSeconds": 0, "containers": [container]}


def workload(kind: str, name: str, replicas: int, pod: Object) -> Object:
    """Make a Deployment or a StatefulSet with as many pods."""
    labels = {"app": name}
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def service(name: str, **spec: object) -> Object:
    """Make a Service on port 80 for the workload of that name."""
    whole = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": whole}


def task(name: str, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> Object:
    """Make a pod that runs once; without `command` it runs what the image says."""
    container = {"name": "task", "image": image, "args": list(args), "securityContext": RESTRICTED}
    if command:
        container["command"] = list(command)
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
