"""Changes of a job take effect with the least disruption, whatever becomes of the operator."""

import json
import time

import pytest
import yaml

from atoll_operator import rules
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, manifest, pace
from unit.cluster_values import MANIFEST
from unit.test_crd import REFUSED

TRAIN_SECONDS_MAX = 240


def apply(kube: Kubectl, namespace: str, name: str, regions: dict[str, int], **spec: object) -> Job:
    kube.apply(namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
    return Job(kube=kube, namespace=namespace, name=name)


def patch(job: Job, **spec: object) -> None:
    job.kubectl("patch", "dtj", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def trains(job: Job, count: int) -> None:
    until(f"{count} train", lambda: len(job.training()) == count, TRAIN_SECONDS_MAX)


@pytest.mark.parametrize(("changes", "rule"), REFUSED)
def test_the_api_server_says_what_validate_says(
    atoll: Installed, kube: Kubectl, namespace: str, changes: tuple[str], rule: rules.Rule
) -> None:
    document = yaml.safe_load(MANIFEST)
    for change in changes:
        path, _, value = change.partition("=")
        place = document
        *parents, last = path.split(".")
        for key in parents:
            place = place[key]
        place[last] = yaml.safe_load(value)
    words = ("-n", namespace, "apply", "--server-side", "-f", "-")
    done = kube.attempt(*words, stdin=json.dumps(document))
    assert done.returncode != 0
    assert rule.field in done.stderr
    assert f"{rule.problem}; {rule.remedy}" in done.stderr


@pytest.mark.parametrize("fixed", rules.FIXED, ids=lambda each: each.field)
def test_what_is_fixed_cannot_be_changed(
    atoll: Installed, kube: Kubectl, namespace: str, fixed: rules.Fixed
) -> None:
    job = Job(kube=kube, namespace=namespace, name="tiny")
    spec = {"suspend": True, "steps": 600, "tokens": None}
    if fixed.field == "spec.tokens":
        spec = {"suspend": True, "tokens": 600, "steps": None}
    document = yaml.safe_load(MANIFEST)
    document["spec"] |= spec
    document["spec"] = {k: v for k, v in document["spec"].items() if v is not None}
    kube.apply(namespace, document)
    new = {"spec.syncer.region": "eu-west", "spec.syncer.shards": 3, "spec.learner.hosts": 2,
           "spec.sync": {"period": 17}, "spec.managedBy": "x"}.get(fixed.field, 5)  # fmt: skip
    for key in reversed(fixed.field.split(".")[1:]):
        new = {key: new}
    done = kube.attempt(
        "-n", namespace, "patch", "dtj", job.name, "--type=merge", "-p", json.dumps({"spec": new})
    )
    assert done.returncode != 0
    assert fixed.text in done.stderr


@pytest.mark.timeout(900)
def test_more_and_fewer_learners_restart_nobody(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(kube, namespace, "grows", {"us-east": 2})
    trains(job, 2)
    before = job.uids()
    patch(job, regions=[{"name": "us-east", "learners": 3}])
    trains(job, 3)
    assert before.items() <= job.uids().items()
    patch(job, regions=[{"name": "us-east", "learners": 2}])
    until("two are left", lambda: len(job.pods("learner")) == 2, 90)
    assert job.uids() == before
    until("status says 2", lambda: job.get()["status"]["columns"]["learners"] == "2/2", 30)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_suspend_takes_all_pods_and_resume_goes_on_with_the_run(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(kube, namespace, "stops", {"us-east": 1})
    trains(job, 1)
    run = job.status().run  # type: ignore[union-attr]
    patch(job, suspend=True)
    until("suspended", lambda: job.is_true("Suspended"), 90)
    assert not job.pods("learner")
    patch(job, suspend=False)
    trains(job, 1)
    assert job.status().run == run  # type: ignore[union-attr]
    assert job.condition("Suspended")["status"] == "False"


def test_a_job_created_suspended_has_no_pods_and_all_conditions(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(kube, namespace, "waits", {"us-east": 1}, suspend=True)
    until("suspended", lambda: job.is_true("Suspended"), 20)
    assert len(job.get()["status"]["conditions"]) == 10
    assert not job.pods()


@pytest.mark.timeout(600)
def test_bad_input_fails_the_job_and_leaves_no_pod(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    wrong = pace(300)
    wrong["template"]["spec"]["containers"][0]["args"] = ["--batch=-1"]
    job = apply(kube, namespace, "wrong", {"us-east": 1}, learner=wrong)
    until("failed", lambda: job.is_true("Failed"), 120)
    found = job.condition("Failed")
    assert found["reason"] == "BadInput"
    assert "exit code 64" in found["message"]
    until("no pod is left", lambda: not job.pods(), 90)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_finished_job_goes_after_its_time_to_live(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(
        kube, namespace, "late", {"us-east": 1},
        activeDeadlineSeconds=5, ttlSecondsAfterFinished=5,
    )  # fmt: skip
    until("failed", lambda: job.condition("Failed")["reason"] == "DeadlineExceeded", 60)
    words = ("-n", namespace, "get", "dtj", "late")
    until("gone", lambda: kube.attempt(*words).returncode != 0, 90)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["create", "scale", "delete"])
def test_an_operator_killed_in_the_middle_converges(
    moment: str, atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(kube, namespace, "torn", {"us-east": 1, "eu-west": 1})
    if moment == "create":
        _kill(atoll, kube)
    trains(job, 2)
    before = job.uids()
    if moment == "scale":
        patch(job, regions=[{"name": "us-east", "learners": 2}, {"name": "eu-west"}])
        _kill(atoll, kube)
        trains(job, 3)
        assert before.items() <= job.uids().items()
    if moment == "delete":
        job.kubectl("delete", "dtj", job.name, "--wait=false")
        _kill(atoll, kube)
        until("nothing is left", lambda: not job.pods(), 90)
    else:
        assert len(job.pods("shard")) == 1


def _kill(atoll: Installed, kube: Kubectl) -> None:
    """End the operator at once, without a word; its Deployment starts another."""
    kube("-n", "atoll-system", "delete", "pod", atoll.pod(), "--grace-period=0", "--force")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_at_rest_twenty_jobs_cost_no_write(atoll: Installed, kube: Kubectl, namespace: str) -> None:
    jobs = [
        apply(kube, namespace, f"rest-{i}", {"us-east": 1, "eu-west": 1}, suspend=True)
        for i in range(20)
    ]
    for job in jobs:
        until("suspended", lambda job=job: job.is_true("Suspended"), 60)  # type: ignore[misc]
    _pass(5)
    versions = _versions(kube, namespace)
    writes = atoll.metric("atoll_operator_api_writes_total")
    _pass(60)
    assert atoll.metric("atoll_operator_api_writes_total") == writes
    assert _versions(kube, namespace) == versions


def _versions(kube: Kubectl, namespace: str) -> dict[str, str]:
    items = kube.get("-n", namespace, "dtj")["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items}


def _pass(seconds: float) -> None:
    began = time.monotonic()
    until("time passes", lambda: time.monotonic() - began >= seconds, seconds + 5)
