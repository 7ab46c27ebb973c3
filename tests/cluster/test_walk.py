"""The README's walk: helm install, kubectl apply, a model trained in three regions."""

import json
import shlex
from pathlib import Path

import pytest
from safetensors import safe_open

from atoll_operator.api.reasons import TYPES
from atoll_operator.client import FailedError, JobClient
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest
from cluster.typed import Shell

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/three-regions.yaml"
TRAINED_SECONDS_MAX = 1800
MODELS = "/models"
ROLE = "atoll-system-atoll-operator-jobs-{}"  # as docs/kubernetes.md names those of the chart


def test_the_example_trains_to_the_end_and_its_model_is_as_good_as_its_status_says(
    atoll: Installed, kube: Kubectl, namespace: str, worker_image: str, tmp_path: Path
) -> None:
    job = Job(kube=kube, namespace=namespace, name="three-regions")
    job.kubectl("apply", "-f", str(EXAMPLE))

    def conditions() -> list[dict[str, str]]:
        found: list[dict[str, str]] = job.get().get("status", {}).get("conditions", [])
        return found

    until("all conditions", lambda: [each["type"] for each in conditions()] == [*TYPES])
    until("three learners train", lambda: job.get()["status"].get("learnersLive") == 3)
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
    shells = {role: Shell.made(tmp_path / role, kube) for role in ("view", "edit", "admin")}
    for role, shell in shells.items():
        shell.acts_as(kube, namespace, ROLE.format(role))
    _is_read_and_exported_from_here(job, tmp_path / "model", shells["edit"])
    _each_role_may_do_what_the_page_says(job, shells)
    _is_waited_for_from_python(job)
    job.kubectl("wait", "--for=condition=Complete", "dtj/three-regions", "--timeout=5s")
    until("it is told", lambda: bool(job.events("CompleteTrue")))
    ((kind, said),) = job.events("CompleteTrue")
    assert (kind, said.partition(":")[0]) == ("Normal", "Complete is True")
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


def _is_read_and_exported_from_here(job: Job, model: Path, shell: Shell) -> None:
    """What `kubectl atoll` shows and takes of the running job, as a person types it."""

    def atoll(*words: str) -> str:
        return shell(f"kubectl atoll {shlex.join(words)} -n {job.namespace}")

    explained = shell("kubectl explain dtj.spec.sync.overlap")
    assert "FIELD: overlap <integer>" in explained
    assert "DESCRIPTION:" in explained
    told = atoll("status", job.name)
    assert told.startswith("three-regions: Training, tick "), told
    assert "learners 3/3 (us-east 1/1, eu-west 1/1, ap-south 1/1), shards 1/1" in told
    rows = atoll("top", job.name).splitlines()
    (learner,) = [row for row in rows if row.startswith("us-east-0 ")]
    assert "Training" in learner
    assert job.node_of("three-regions-us-east-0") in learner.split()
    assert [row.split()[1] for row in rows if row.startswith("shard-0 ")] == ["Serving"]
    picture = model.with_name("loss.png")
    drawn = ("plot", job.name, "--out", str(picture))
    until("a loss of each learner is noted", lambda: "3 learners" in atoll(*drawn))
    assert picture.stat().st_size > 0
    logs = atoll("logs", job.name, "--tail", "1").splitlines()
    slots = ("us-east-0", "eu-west-0", "ap-south-0")
    assert {each.partition(" ")[0] for each in logs} >= {
        f"[{slot}]" for slot in (*slots, "shard-0")
    }
    before = job.uids()
    atoll("export", job.name, "--out", str(model))
    with safe_open(model / "model.safetensors", "np") as file:
        assert len(list(file.keys())) > 1
    assert (model / "model.safetensors.index.json").exists()
    assert before.items() <= job.uids().items()


def _each_role_may_do_what_the_page_says(job: Job, shells: dict[str, Shell]) -> None:
    """With the chart's role alone: what an editor may do is tried already."""
    where = f"-n {job.namespace}"
    viewer, editor, admin = (shells[role] for role in ("view", "edit", "admin"))
    assert job.name in viewer(f"kubectl get dtj {where}")
    assert viewer(f"kubectl atoll status {job.name} {where}").startswith(f"{job.name}: ")
    assert viewer(f"kubectl atoll logs {job.name} us-east-0 --tail 1 {where}")
    viewer(f"kubectl describe dtj {job.name} {where}")
    credentials = f"kubectl atoll credentials {job.name} --region eu-west {where}"
    for shell, command in (
        (viewer, f"kubectl patch dtj {job.name} {where} --type=merge -p '{{}}'"),
        (viewer, f"kubectl atoll export {job.name} --out model {where}"),
        (editor, credentials),
        (editor, f"kubectl get secret {job.name}-ca {where}"),
    ):
        done = shell.attempt(command)
        assert done.returncode, done.stdout
        assert "orbidden" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert "kind: Secret" in admin(credentials)


def _is_waited_for_from_python(job: Job) -> None:
    """Until it is Complete; the client of a person's program reads the same status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", job.kube.kubeconfig)
        jobs = JobClient(namespace=job.namespace)
        assert [each.name for each in jobs.list()] == [job.name]
        assert [process for process, _ in jobs.logs(job.name, "us-east-0", tail=1)] == ["us-east-0"]
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
    job.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/measure", "--timeout=600s")
    last = job.kubectl("logs", "measure").strip().splitlines()[-1]
    return float(json.loads(last)["loss"])
