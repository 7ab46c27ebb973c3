"""The README's walk: helm install, kubectl apply, a model trained on nodes without its label."""

import json

from atoll_operator.api.status.reasons import TYPES
from cluster.conftest import Walk
from cluster.kubectl import until
from cluster.manifests import task
from cluster.training import Job, manifest

TRAINED_SECONDS_MAX = 1800
CLAIM, MODELS = "quickstart-syncer-0", "/models"


def test_the_example_trains_to_the_end_and_its_model_is_as_good_as_its_status_says(
    walking: Walk, worker_image: str
) -> None:
    job = walking.job
    labels = job.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.labels}")
    regions = {each["name"] for each in job.get()["spec"]["regions"]}
    assert not any(f'"{region}"' in labels for region in regions)

    def conditions() -> list[dict[str, str]]:
        found: list[dict[str, str]] = job.get().get("status", {}).get("conditions", [])
        return found

    until("all conditions", lambda: [each["type"] for each in conditions()] == [*TYPES])
    job.kube.apply(job.namespace, manifest("rests", {"us-east": 1}, suspend=True))
    job.kubectl("wait", "--for=condition=Suspended", "dtj/rests", "--timeout=600s")
    job.kubectl("delete", "dtj", "rests")
    until("it is complete", lambda: job.is_true("Complete"), TRAINED_SECONDS_MAX)
    assert "quickstart condition met" in walking.shell(walking.waits)
    until("it has an Event", lambda: bool(job.events("CompleteTrue")))
    ((kind, message),) = job.events("CompleteTrue")
    assert (kind, message.partition(":")[0]) == ("Normal", "Complete is True")
    assert " CompleteTrue " in job.kubectl("describe", "dtj", job.name)
    status = job.get()["status"]
    assert status["exportURL"] == f"pvc://{CLAIM}/{folder_of(job)}"
    assert status["progress"]["progressPercentage"] == 100
    metrics = {each["name"]: float(each["value"]) for each in status["progress"]["metrics"]}
    until("no pod is left", lambda: not job.pods())
    assert abs(_loss(job, worker_image) - metrics["outer_loss"]) < 0.01
    assert metrics["outer_loss"] < 2.2
    job.kubectl("delete", "dtj", job.name, "--wait=false")
    left = "all,cm,pdb,sa"
    selector = "-l", f"atoll.dev/job={job.name}"
    until("nothing is left", lambda: not job.kubectl("get", left, *selector, "-o", "name"))


def folder_of(job: Job) -> str:
    """Where the model is on the claim of the shard."""
    return f"{job.get()['metadata']['uid']}/export"


def _loss(job: Job, image: str) -> float:
    """Measure the exported model in a pod of its own, on the text of the evaluator's image."""
    command = ("python3", "-m", "bytegpt.evaluate", "--export", f"{MODELS}/{folder_of(job)}")
    pod = task("measure", image, [*command, "--heldout-bytes", str(1 << 17)])
    pod["spec"]["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": CLAIM}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "models", "mountPath": MODELS}]
    job.kube.apply(job.namespace, pod)
    job.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/measure", "--timeout=600s")
    last = job.kubectl("logs", "measure").strip().splitlines()[-1]
    return float(json.loads(last)["loss"])
