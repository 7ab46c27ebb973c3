"""Kueue itself admits learners of several hosts: all hosts of one, or none of them."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import LabCommand
from cluster.installed import FORCE, OPERATOR_NODE, Installed
from cluster.kubectl import Kubectl, Object, until
from cluster.lab import images, kueue, lifecycle
from cluster.training import Job, manifest, model

NAMESPACE = "kueue-system"
QUEUE = {"kueue.x-k8s.io/queue-name": "train"}
KUEUE = "kueue.x-k8s.io/v1beta2"
SECONDS_MAX = 600.0
CONFIGURATION = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
webhook: {port: 9443}
leaderElection: {leaderElect: false}
integrations: {frameworks: [pod, statefulset]}
"""


@pytest.fixture(scope="module")
def queues(
    lab: LabCommand, atoll: Installed, kube: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Kueue on the main cluster, as its own chart installs it."""
    folder = tmp_path_factory.mktemp("kueue")
    archive = kueue.archive(folder)
    for node in lifecycle.current().clusters[0].nodes:
        images.load(node, archive)
    image = f"{{repository: {kueue.REPOSITORY}, tag: {kueue.TAG}, pullPolicy: IfNotPresent}}"
    text = "".join(f"    {line}\n" for line in CONFIGURATION.splitlines())
    values = folder / "values.yaml"
    values.write_text(
        "controllerManager:\n"
        "  featureGates: [{name: FailureRecoveryPolicy, enabled: true}]\n"
        f"  manager: {{image: {image}, resources: null}}\n"
        f"  nodeSelector: {{kubernetes.io/hostname: {OPERATOR_NODE}}}\n"
        f"managerConfig:\n  controllerManagerConfigYaml: |-\n{text}"
    )
    helm = [atoll.helm, f"--kubeconfig={kube.kubeconfig}", "--namespace", NAMESPACE]

    def call(*words: str) -> None:
        done = subprocess.run([*helm, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    call("install", "kueue", str(kueue.chart()), "--create-namespace", "--values", str(values),
         FORCE, "--wait", "--timeout", "600s")  # fmt: skip
    yield
    # Its objects have finalizers that only it removes, so they go first.
    kube("delete", "localqueues,clusterqueues,resourceflavors", "--all", "-A", "--timeout=600s")
    call("uninstall", "kueue")
    kube("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
def queued(queues: None, kube: Kubectl, namespace: str) -> Iterator[Callable[..., Job]]:
    """Apply a job of two hosts a learner, each with 0.3 of a core, to a queue; it ends after."""
    jobs = []

    def apply(regions: dict[str, int], cpu: str) -> Job:
        flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}}
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "train"}}
        kube.apply(namespace, flavor, quota(cpu), {**local, "spec": {"clusterQueue": "train"}})
        learner = model(300)
        learner["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "300m"}}
        learner["template"]["metadata"] = {"labels": QUEUE}
        jobs.append(Job(kube=kube, namespace=namespace, name="queued"))
        kube.apply(namespace, manifest("queued", regions, learner={**learner, "hosts": 2}))
        return jobs[0]

    yield apply
    for job in jobs:
        job.kubectl("delete", "dtj", job.name)
        until("its pods are gone", lambda job=job: not job.pods("learner"), SECONDS_MAX)  # type: ignore[misc]


def quota(cpu: str) -> Object:
    """A queue of the whole cluster with so much CPU for learners."""
    resource = {"name": "cpu", "nominalQuota": cpu}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [resource]}]}
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": "train"},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
    }


def gated(job: Job) -> set[str]:
    """The learners' pods that Kueue keeps from the scheduler."""
    return {name for name, pod in job.pods("learner").items() if pod["spec"].get("schedulingGates")}


@pytest.mark.long
def test_a_queue_admits_learners_whole_and_what_waits_is_reported(
    queued: Callable[..., Job], kube: Kubectl, namespace: str
) -> None:
    job = queued({"us-east": 2}, cpu="1")

    # There is room for one learner. Of the other not even one host is let go.
    job.trains(1)
    (trains,) = job.training()
    waits = "us-east-0" if trains == "us-east-1" else "us-east-1"
    assert gated(job) == {f"queued-{waits}-{host}" for host in range(2)}
    until("it is reported", lambda: waits in job.condition("Degraded")["message"], SECONDS_MAX)
    assert "gate" in job.condition("Degraded")["message"]

    # Room for both: the other one joins what trains.
    before = job.uids("learner")
    kube.apply(namespace, quota("2"))
    job.trains(2)
    assert {**before, **job.uids("learner")} == before, "no host was made again"

    # A job that is suspended gives its room back, and takes it again.
    job.patch(suspend=True)
    until("no pods", lambda: not job.pods("learner"), SECONDS_MAX)
    job.patch(suspend=False)
    job.trains(2)
