"""What a running job shows to a person with kubectl and with `kubectl atoll`.

The job trains for as long as the test needs it, so nothing here depends on how fast it does.
"""

import json
import shlex
from pathlib import Path

from safetensors import safe_open

from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest, pace
from cluster.typed import Shell

REGIONS = ("us-east", "eu-west", "ap-south")
ROLE = "atoll-system-atoll-operator-jobs-{}"  # as docs/kubernetes.md names those of the chart


def test_a_running_job_is_read_and_exported_by_whoever_may(
    atoll: Installed, kube: Kubectl, namespace: str, tmp_path: Path
) -> None:
    job = Job(kube=kube, namespace=namespace, name="shown")
    kube.apply(namespace, manifest(job.name, dict.fromkeys(REGIONS, 1), learner=pace(200)))
    until("three learners train", lambda: job.get().get("status", {}).get("learnersLive") == 3)
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


def _is_read_and_exported_from_here(job: Job, model: Path, shell: Shell) -> None:
    """As a person types it."""

    def atoll(*words: str) -> str:
        return shell(f"kubectl atoll {shlex.join(words)} -n {job.namespace}")

    explained = shell("kubectl explain dtj.spec.sync.overlap")
    assert "FIELD: overlap <integer>" in explained
    assert "DESCRIPTION:" in explained
    rows = atoll("top", job.name).splitlines()
    (learner,) = [row for row in rows if row.startswith("us-east-0 ")]
    assert "Training" in learner
    assert job.node_of("shown-us-east-0") in learner.split()
    assert [row.split()[1] for row in rows if row.startswith("shard-0 ")] == ["Serving"]
    printed = shell(
        f"kubectl logs -l atoll.dev/job={job.name} --prefix --tail=1 -n {job.namespace}"
    )
    assert all(f"[pod/{pod}/" in printed for pod in job.pods()), printed
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
    assert viewer(f"kubectl logs {job.name}-us-east-0 --tail=1 {where}")
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
