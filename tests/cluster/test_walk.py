"""The README's walk: helm install, kubectl apply, a model trained in three regions."""

import json

import pytest

from atoll_operator.api.status.reasons import TYPES
from atoll_operator.client import FailedError, JobClient
from cluster.kubectl import until
from cluster.manifests import task
from cluster.training import Job, manifest

TRAINED_SECONDS_MAX = 1800
MODELS = "/models"


def test_the_example_trains_to_the_end_and_its_model_is_as_good_as_its_status_says(
    walking: Job, worker_image: str
) -> None:
    job = walking

    def conditions() -> list[dict[str, str]]:
        found: list[dict[str, str]] = job.get().get("status", {}).get("conditions", [])
        return found

    until("all conditions", lambda: [each["type"] for each in conditions()] == [*TYPES])
    _is_waited_for_from_python(job)
    job.kubectl("wait", "--for=condition=Complete", "dtj/three-regions", "--timeout=60s")
    until("it has an Event", lambda: bool(job.events("CompleteTrue")))
    ((kind, message),) = job.events("CompleteTrue")
    assert (kind, message.partition(":")[0]) == ("Normal", "Complete is True")
    assert " CompleteTrue " in job.kubectl("describe", "dtj", job.name)
    status = job.get()["status"]
    assert status["exportURL"] == "file:///models/three-regions"
    assert status["progress"]["progressPercentage"] == 100
    metrics = {each["name"]: float(each["value"]) for each in status["progress"]["metrics"]}
    until("no pod is left", lambda: not job.pods())
    assert abs(_loss(job, worker_image) - metrics["outer_loss"]) < 0.01
    assert metrics["outer_loss"] < 2.2
    job.kubectl("delete", "dtj", "three-regions", "--wait=false")
    left = "all,cm,pdb,sa"
    selector = "-l", "atoll.dev/job=three-regions"
    until("nothing is left", lambda: not job.kubectl("get", left, *selector, "-o", "name"))


def _is_waited_for_from_python(job: Job) -> None:
    """Until it is Complete; the client of a person's program reads the same status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", job.kube.kubeconfig)
        jobs = JobClient(namespace=job.namespace)
        assert [each.name for each in jobs.list()] == [job.name]
        assert jobs.create(manifest("rests", {"us-east": 1}, suspend=True)).name == "rests"
        assert jobs.wait_for("rests", "Suspended", timeout_seconds=600).state == "Suspended"
        jobs.delete("rests")
        done = jobs.wait_for(job.name, "Complete", timeout_seconds=TRAINED_SECONDS_MAX)
        assert done.state == "Complete"
        assert done.status.export_url == "file:///models/three-regions"
        with pytest.raises(FailedError, match="three-regions: has become Complete"):
            jobs.wait_for(job.name, "Suspended")


def _loss(job: Job, image: str) -> float:
    """Measure the exported model in a pod of its own, on the text of the evaluator's image."""
    command = ("python3", "-m", "bytegpt.evaluate", "--export", f"{MODELS}/three-regions")
    pod = task("measure", image, [*command, "--heldout-bytes", str(1 << 17)])
    pod["spec"]["volumes"] = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "models", "mountPath": MODELS}]
    job.kube.apply(job.namespace, pod)
    job.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/measure", "--timeout=600s")
    last = job.kubectl("logs", "measure").strip().splitlines()[-1]
    return float(json.loads(last)["loss"])
