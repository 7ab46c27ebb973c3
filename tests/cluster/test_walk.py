"""The README's walk: helm install, kubectl apply, a model trained in three regions."""

import json
from pathlib import Path

import pytest

from atoll_operator.api.reasons import TYPES
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/three-regions.yaml"
TRAINED_SECONDS_MAX = 900
MODELS = "/models"


@pytest.mark.timeout(1200)
def test_the_example_trains_to_the_end_and_its_model_is_as_good_as_its_status_says(
    atoll: Installed, kube: Kubectl, namespace: str, worker_image: str
) -> None:
    job = Job(kube=kube, namespace=namespace, name="three-regions")
    job.kubectl("apply", "-f", str(EXAMPLE))

    def conditions() -> list[dict[str, str]]:
        found: list[dict[str, str]] = job.get().get("status", {}).get("conditions", [])
        return found

    until("all conditions", lambda: [each["type"] for each in conditions()] == [*TYPES], 20)
    until("three learners train", lambda: job.get()["status"].get("learnersLive") == 3, 180)
    columns = job.kubectl("get", "dtj").splitlines()
    assert columns[0].split() == [
        "NAME", "STATE", "LEARNERS", "STEP", "PROGRESS", "LOSS", "SYNCER", "AGE",
    ]  # fmt: skip
    assert columns[1].split()[1:3] == ["Training", "3/3"]
    for pod in job.pods().values():  # nothing of Kubernetes can be asked from inside
        volumes = json.dumps(pod["spec"]["volumes"])
        assert "serviceAccountToken" not in volumes, pod["metadata"]["name"]
    (shard,) = job.pods("shard")
    where = f"/api/v1/namespaces/{namespace}/pods/{shard}:9090/proxy/metrics"
    assert "atoll_syncer_" in kube("get", "--raw", where)
    until("complete", lambda: job.is_true("Complete"), TRAINED_SECONDS_MAX)
    job.kubectl("wait", "--for=condition=Complete", "dtj/three-regions", "--timeout=5s")
    status = job.get()["status"]
    assert status["exportURL"] == "file:///models/three-regions"
    assert status["progress"]["progressPercentage"] == 100
    metrics = {each["name"]: float(each["value"]) for each in status["progress"]["metrics"]}
    until("no pod is left", lambda: not job.pods(), 60)
    assert abs(_loss(job, worker_image) - metrics["outer_loss"]) < 0.01
    assert metrics["outer_loss"] < 2.2
    job.kubectl("delete", "dtj", "three-regions", "--wait=false")
    left = "all,cm,pdb,sa"
    selector = "-l", "atoll.dev/job=three-regions"
    until("nothing is left", lambda: not job.kubectl("get", left, *selector, "-o", "name"), 60)


def _loss(job: Job, image: str) -> float:
    """Measure the exported model in a pod of its own, on the text of the evaluator's image."""
    command = ["python3", "-m", "bytegpt.evaluate", "--export", f"{MODELS}/three-regions"]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "measure",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*command, "--heldout-bytes", str(1 << 17)],
        "securityContext": security,
        "volumeMounts": [{"name": "models", "mountPath": MODELS}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "measure"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        },
    }
    job.kube.apply(job.namespace, pod)
    job.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/measure", "--timeout=100s")
    last = job.kubectl("logs", "measure").strip().splitlines()[-1]
    return float(json.loads(last)["loss"])
