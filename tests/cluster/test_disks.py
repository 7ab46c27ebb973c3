"""The syncer's node is lost, and its shard's volume is attached to it as a cloud's disk is.

`pytest -m long -rP tests/cluster/test_disks.py` shows how long a shard is away: until a person
reports that the node is off, or until Kubernetes detaches the volume by itself. Its controller
manager makes and deletes the attachments; for a folder there is nothing else to attach.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, Object, until
from cluster.lab import disks, lifecycle
from cluster.lab.layout import Node
from cluster.lab.processes import NODE_MARK, boot_process, kill, start
from cluster.test_syncer_loss import HOME, REFUGE, Served
from cluster.training import Job, Stopwatch

CLASS = "disks"
TAINT = "node.kubernetes.io/out-of-service"


@pytest.fixture
def disk(lab: LabCommand, kube: Kubectl, namespace: str, tmp_path: Path) -> Iterator[None]:
    """A storage class with one volume that one node of us-east can have at a time."""
    folder = tmp_path / "disk"
    folder.mkdir()
    folder.chmod(0o777)  # as the driver changes no owner
    here = lifecycle.current()
    pids = [serve(here.node(node), tmp_path) for node in (HOME, REFUGE)]
    kube.apply(namespace, *storage(namespace, folder.name))
    over = Event()
    attacher = Thread(target=attach, args=(kube, over), daemon=True)
    attacher.start()
    for node in (HOME, REFUGE):
        until(f"{node} has the driver", lambda node=node: disks.DRIVER in drivers(kube, node))  # type: ignore[misc]
    yield
    kube("-n", namespace, "delete", "dtj,pvc", "--all", "--timeout=600s")
    kube("delete", f"pv/{namespace}", f"storageclass/{CLASS}", f"csidriver/{disks.DRIVER}")
    until("nothing is attached", lambda: not kube.get("volumeattachments")["items"])
    over.set()
    attacher.join()
    for pid in pids:
        kill(pid)


def serve(node: Node, folder: Path) -> int:
    """Start the driver on a node, and return its pid; it ends with the node."""
    within = ("nsenter", "-t", str(boot_process(node.short)), "-m", "-p", "-n", "-u", "-i")
    argv = (*within, sys.executable, disks.__file__, node.name, folder)
    return start(argv, node.folder / "log/disks.log", {NODE_MARK: node.short})


def attach(kube: Kubectl, over: Event) -> None:
    """Mark every attachment as done, as a cloud's controller does some seconds later."""
    done = ("--subresource=status", "--type=merge", "-p", '{"status": {"attached": true}}')
    while not over.wait(1.0):
        for each in kube.get("volumeattachments")["items"]:
            if not each["status"]["attached"]:
                kube.attempt("patch", "volumeattachment", each["metadata"]["name"], *done)


def storage(volume: str, folder: str) -> list[Object]:
    """The driver, its class, and a volume that nodes of us-east can have."""
    term = {"key": "topology.kubernetes.io/region", "operator": "In", "values": ["us-east"]}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": disks.DRIVER},
            "spec": {"attachRequired": True, "fsGroupPolicy": "None"},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "csi": {"driver": disks.DRIVER, "volumeHandle": folder},
                "storageClassName": CLASS,
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
            },
        },
    ]


def drivers(kube: Kubectl, node: str) -> set[str]:
    """The CSI drivers that a node's kubelet has registered."""
    found = kube.attempt("get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}")
    return set(found.stdout.split())


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("remedy", ["taint", "none"])
@pytest.mark.usefixtures("disk")
def test_a_shard_whose_volume_is_attached_to_a_lost_node_is_reported_and_comes_back(
    remedy: str, train: Callable[..., Job], cut: Callable[..., None], kube: Kubectl
) -> None:
    storage = {"type": "PersistentVolumeClaim", "storageClassName": CLASS, "size": "1Gi"}
    served = Served.begun(train, kube, "attached", storage)
    job = served.job

    def message() -> str:
        return job.condition("SyncerReady").get("message", "")

    watch = Stopwatch()
    cut(HOME, how="power")
    watch.until("object", served.is_replaced)
    watch.until("reported", lambda: "Multi-Attach error" in message())
    assert "cannot start on" in message()
    assert REFUGE in message()
    assert f"kubectl taint node {HOME} {TAINT}=nodeshutdown:NoExecute" in message()
    if remedy == "taint":
        kube("taint", "node", HOME, f"{TAINT}=nodeshutdown:NoExecute")
    try:
        watch.until("serves", lambda: job.status() is not None)
        watch.until("trains", lambda: len(job.training()) == 2)
    finally:
        kube.attempt("taint", "node", HOME, f"{TAINT}-")
    sys.stderr.write(f"\na shard's disk is attached to a lost node, {remedy}: {watch.laps}\n")
    served.goes_on(keeps=True)
