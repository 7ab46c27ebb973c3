"""Changes of a job take effect with the least disruption."""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
import yaml

from atoll_operator.api import rules
from atoll_operator.api.reasons import TYPES
from atoll_syncer.rules.runs import MINT_SECONDS
from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.lab import roles
from cluster.training import Job, manifest, pace, pass_seconds
from unit.api.test_crd import REFUSED
from unit.kube.cluster_values import MANIFEST

WRITES = "atoll_operator_api_writes_total"
REST_SECONDS = 300.0
LATE_SECONDS = 1.0


def apply(kube: Kubectl, namespace: str, name: str, regions: dict[str, int], **spec: object) -> Job:
    kube.apply(namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
    return Job(kube=kube, namespace=namespace, name=name)


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
            place = place.setdefault(key, {})
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
    document = yaml.safe_load(MANIFEST)
    document["spec"] |= spec
    storage = {"type": "PersistentVolumeClaim", "storageClassName": "a", "size": "10Gi"}
    document["spec"]["syncer"]["storage"] = storage
    document["spec"] = {k: v for k, v in document["spec"].items() if v is not None}
    kube.apply(namespace, document)
    new = {"spec.syncer.region": "eu-west", "spec.syncer.shards": 3, "spec.learner.hosts": 2,
           "spec.sync": {"period": 17}, "spec.managedBy": "x",
           "spec.restore": {"fromJob": {"name": "old"}},
           "spec.syncer.tls.issuerRef": {"name": "another"},
           "spec.syncer.storage.storageClassName": "b",
           }.get(fixed.field, 5)  # fmt: skip
    for key in reversed(fixed.field.split(".")[1:]):
        new = {key: new}
    if fixed.field == "spec.steps":
        new = {"steps": None, "tokens": 600}
    done = kube.attempt(
        "-n", namespace, "patch", "dtj", job.name, "--type=merge", "-p", json.dumps({"spec": new})
    )
    assert done.returncode != 0
    assert fixed.text in done.stderr


def test_the_shards_stay_in_their_region_when_another_one_is_put_in_front(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    document = yaml.safe_load(MANIFEST)
    document["spec"]["suspend"] = True
    kube.apply(namespace, document)

    def edit(home: str, *regions: str) -> tuple[int, str]:
        change = {"regions": [{"name": each} for each in regions], "syncer": {"region": home}}
        words = ("patch", "dtj", "tiny", "--type=merge", "-p", json.dumps({"spec": change}))
        done = kube.attempt("-n", namespace, *words)
        return done.returncode, done.stderr

    code, said = edit("", "ap-south", "us-east", "eu-west")
    assert code != 0
    assert "keep that region the first" in said
    assert edit("", "us-east", "ap-south", "eu-west")[0] == 0
    assert edit("us-east", "ap-south", "us-east", "eu-west")[0] == 0


@pytest.mark.parametrize(
    "sync",
    [
        {"fragments": 4, "period": 16, "overlap": 2, "quorum": 1},
        {"preset": "DiLoCo", "period": 4},
        pytest.param(
            {"preset": "StreamingDiLoCo", "fragments": 4, "period": 16}, marks=pytest.mark.long
        ),
    ],
    ids=lambda sync: sync.get("preset", "DecoupledDiLoCo"),
)
def test_more_and_fewer_learners_restart_nobody(
    sync: dict[str, object], train: Callable[..., Job]
) -> None:
    job = train("grows", {"us-east": 2}, sync=sync)
    before = job.uids()
    job.patch(regions=[{"name": "us-east", "learners": 3}])
    job.trains(3)
    assert before.items() <= job.uids().items()
    assert not job.events("DegradedTrue")  # one that is asked for and starts is not missing
    commits = len(job.commits())
    until("merges go on", lambda: len(job.commits()) > commits + 2)
    job.patch(regions=[{"name": "us-east", "learners": 2}])
    until("two are left", lambda: len(job.pods("learner")) == 2)
    commits = len(job.commits())
    until("merges go on with two", lambda: len(job.commits()) > commits + 2)
    assert job.uids() == before
    until("status says 2", lambda: job.get()["status"]["columns"]["learners"] == "2/2")


def test_a_new_job_does_not_wait_for_learners_that_cannot_exist(
    train: Callable[..., Job],
) -> None:
    """All have dialled, so nobody can hold a run: the registrar does not ask for 30 s.

    On a slow machine it may, since a learner dials only after that; it is admitted later, then.
    """
    job = train("begins", {"us-east": 2})
    said = job.kubectl("logs", "deploy/begins-syncer-0").splitlines()
    lines = [json.loads(line) for line in said if line.startswith("{")]
    serves = next(line["timestamp"] for line in lines if line["event"] == "serving")
    serving = datetime.fromisoformat(serves).timestamp()
    events = {line["event"]: line for line in reversed(job.tape())}
    begun = events["run"]["time"]
    admitted = max(line["time"] for line in job.tape() if line["event"] == "taken")
    assert begun - serving < MINT_SECONDS or admitted - begun > LATE_SECONDS
    assert events["start"]["missing"] == []


@pytest.mark.long
def test_a_region_more_and_less_restarts_nobody(train: Callable[..., Job]) -> None:
    job = train("spreads", {"us-east": 2}, sync={"preset": "DiLoCo", "period": 4})
    before = job.uids()
    job.patch(regions=[{"name": "us-east", "learners": 2}, {"name": "eu-west", "learners": 1}])
    job.trains(3)
    assert before.items() <= job.uids().items()
    job.patch(regions=[{"name": "us-east", "learners": 2}])
    until("two are left", lambda: len(job.pods("learner")) == 2)
    assert job.uids() == before
    job.trains(2)


def _seconds(pod: dict[str, Any], moment: str) -> float:
    return datetime.fromisoformat(pod["metadata"][moment]).timestamp()


@pytest.mark.long
def test_a_new_image_rolls_region_by_region_keeping_the_quorum(
    train: Callable[..., Job], lab: LabCommand
) -> None:
    sync = {"fragments": 4, "period": 16, "overlap": 2, "quorum": 2}
    job = train("rolls", {"us-east": 2, "eu-west": 1}, sync=sync)
    before, shards = job.uids("learner"), job.uids("shard")
    lab("load", "--tag", "next")
    image = roles.name("worker", "next")
    learner = pace(300)
    learner["template"]["spec"]["containers"][0]["image"] = image
    job.patch(learner=learner)

    def rolled() -> bool:
        now = job.uids("learner")
        return all(now.get(name, before[name]) != before[name] for name in before)

    until("all are made again", rolled)
    job.trains(3)
    pods = job.pods("learner")
    made = {name.removeprefix("rolls-"): _seconds(pods[name], "creationTimestamp") for name in pods}
    replaced = sorted(made, key=made.__getitem__)
    assert [slot.rpartition("-")[0] for slot in replaced] == ["us-east", "us-east", "eu-west"]
    # Of three learners two are the quorum, so each is back before the next one is taken away. An
    # incarnation after the first is the new pod's; a pod's times are whole seconds.
    back = {line["slot"]: line["time"] for line in job.tape() if line["event"] == "taken"}
    for earlier, later in pairwise(replaced):
        assert back[earlier] < made[later] + 1, (replaced, made, back)
    for pod in pods.values():
        assert pod["spec"]["containers"][0]["image"] == image
    assert job.uids("shard") == shards
    assert not job.events("DegradedTrue")  # the user has asked for every restart


@pytest.mark.long
@pytest.mark.parametrize("storage", ["Ephemeral", "PersistentVolumeClaim"])
def test_suspend_takes_the_pods_and_resume_goes_on_with_the_run(
    storage: str, train: Callable[..., Job]
) -> None:
    syncer = {"shards": 1, "storage": {"type": storage, "size": "1Gi"}}
    job = train("stops", {"us-east": 1}, syncer=syncer)
    until("some versions", lambda: len(job.commits()) > 4)
    if storage == "PersistentVolumeClaim":
        job.patch(syncer={"storage": {"size": "2Gi"}})
        until("it is refused", lambda: job.condition("Accepted")["reason"] == "ChildrenRefused")
        assert job.is_true("Ready")
        job.patch(syncer={"storage": {"size": "1Gi"}}, steps=200_000)
        until("it is taken back", lambda: job.is_true("Accepted"))
        until("the shard knows", lambda: _length(job) == 200_000)
        job.patch(steps=150_000)
        until("the typo is taken back", lambda: _length(job) == 150_000)
    before = job.status()
    job.patch(suspend=True)
    until("suspended", lambda: job.is_true("Suspended"))
    assert not job.pods("learner")
    if storage == "PersistentVolumeClaim":
        until("no shard is left", lambda: not job.pods())
    job.patch(suspend=False)
    job.trains(1)
    after = job.status()
    assert before is not None
    assert after is not None
    assert after.run == before.run
    assert after.commits >= before.commits
    assert job.condition("Suspended")["status"] == "False"
    assert _length(job) == (150_000 if storage == "PersistentVolumeClaim" else 100_000)


def _length(job: Job) -> int:
    reply = job.status()
    return reply.steps if reply else 0


def test_a_job_created_suspended_has_no_pods_and_all_conditions(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(kube, namespace, "waits", {"us-east": 1}, suspend=True)
    until("suspended", lambda: job.is_true("Suspended"))
    assert [each["type"] for each in job.get()["status"]["conditions"]] == [*TYPES]
    assert not job.pods()
    until("it is told", lambda: bool(job.events("SuspendedTrue")))
    ((kind, said),) = job.events("SuspendedTrue")
    assert (kind, said.partition(":")[0]) == ("Normal", "Suspended is True")
    job.patch(suspend=False)
    until("its end, too", lambda: bool(job.events("SuspendedFalse")))
    ((kind, said),) = job.events("SuspendedFalse")
    assert (kind, said.partition(":")[0]) == ("Normal", "Suspended is False")


def test_bad_input_fails_the_job_and_leaves_no_pod(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    wrong = pace(300)
    wrong["template"]["spec"]["containers"][0]["args"] = ["--batch=-1"]
    job = apply(kube, namespace, "wrong", {"us-east": 1}, learner=wrong)
    until("failed", lambda: job.is_true("Failed"))
    found = job.condition("Failed")
    assert found["reason"] == "BadInput"
    assert "exit code 64" in found["message"]
    until("it is told", lambda: bool(job.events("FailedTrue")))
    assert job.events("FailedTrue") == [("Warning", f"Failed is True: {found['message']}")]
    assert " FailedTrue " in job.kubectl("describe", "dtj", job.name)
    until("no pod is left", lambda: not job.pods())


@pytest.mark.long
def test_a_finished_job_goes_after_its_time_to_live(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = apply(
        kube, namespace, "late", {"us-east": 1},
        activeDeadlineSeconds=5, ttlSecondsAfterFinished=5,
    )  # fmt: skip
    until("failed", lambda: job.condition("Failed")["reason"] == "DeadlineExceeded")
    words = ("-n", namespace, "get", "dtj", "late")
    until("gone", lambda: kube.attempt(*words).returncode != 0)


@pytest.mark.long
def test_at_rest_twenty_jobs_cost_no_write(atoll: Installed, kube: Kubectl, namespace: str) -> None:
    wrong = pace(300)
    wrong["template"]["spec"]["containers"][0]["args"] = ["--batch=-1"]
    failed = apply(kube, namespace, "failed", {"us-east": 1}, learner=wrong)
    regions = {"us-east": 1, "eu-west": 1}
    jobs = [apply(kube, namespace, f"rest-{i}", regions, suspend=True) for i in range(19)]
    for job in jobs:
        until("suspended", lambda job=job: job.is_true("Suspended"))  # type: ignore[misc]
    until("failed", lambda: failed.is_true("Failed") and not failed.pods())
    pass_seconds(15)
    versions, writes = _versions(kube, namespace), atoll.metric(WRITES)
    pass_seconds(REST_SECONDS)
    assert atoll.metric(WRITES) == writes
    assert _versions(kube, namespace) == versions


def _versions(kube: Kubectl, namespace: str) -> dict[str, str]:
    items = kube.get("-n", namespace, "dtj")["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items}
