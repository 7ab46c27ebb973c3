"""Changes of a job take effect with the least disruption."""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
import yaml

from atoll_operator.api.job import field_rules
from atoll_operator.api.status.reasons import TYPES
from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.lab import roles
from cluster.training import Job, manifest, pace
from unit.api.test_crd import REFUSED
from unit.kube.cluster_values import MANIFEST


def apply(kube: Kubectl, namespace: str, name: str, regions: dict[str, int], **spec: object) -> Job:
    kube.apply(namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
    return Job(kube=kube, namespace=namespace, name=name)


@pytest.mark.parametrize(("changes", "rule"), REFUSED)
def test_the_api_server_refuses_in_the_words_of_validate(
    atoll: Installed,
    kube: Kubectl,
    shared_namespace: str,
    changes: tuple[str],
    rule: field_rules.Rule,
) -> None:
    document = yaml.safe_load(MANIFEST)
    document["metadata"]["name"] = "refused"
    for change in changes:
        path, _, value = change.partition("=")
        place = document
        *parents, last = path.split(".")
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = yaml.safe_load(value)
    words = ("-n", shared_namespace, "apply", "--server-side", "-f", "-")
    done = kube.attempt(*words, stdin=json.dumps(document))
    assert done.returncode != 0
    assert rule.field in done.stderr
    assert f"{rule.problem}; {rule.remedy}" in done.stderr


Refused = Callable[..., str]


@pytest.fixture(scope="module")
def refused(atoll: Installed, kube: Kubectl, shared_namespace: str) -> Refused:
    """Patch a suspended job (`of`: with a bucket), which must be refused; returns the words."""
    document = yaml.safe_load(MANIFEST)
    storage = {"type": "PersistentVolumeClaim", "storageClassName": "a", "size": "10Gi"}
    document["spec"] |= {"suspend": True, "steps": 600}
    document["spec"].pop("tokens", None)
    document["spec"]["syncer"]["storage"] = storage
    kube.apply(shared_namespace, document)
    document["metadata"]["name"] = "bucket"
    document["spec"]["syncer"]["storage"] = {"type": "ObjectStore", "url": "s3://models/runs"}
    kube.apply(shared_namespace, document)

    def words(change: dict[str, object], of: str = "tiny") -> str:
        patch = ("patch", "dtj", of, "--type=merge", "-p", json.dumps({"spec": change}))
        done = kube.attempt("-n", shared_namespace, *patch)
        assert done.returncode != 0
        return done.stderr

    return words


@pytest.mark.parametrize("fixed", field_rules.FIXED, ids=lambda each: each.path)
def test_what_is_fixed_cannot_be_changed(refused: Refused, fixed: field_rules.Fixed) -> None:
    new: Any = {"syncer.region": "eu-west", "syncer.shards": 3, "learner.hosts": 2,
           "sync": {"period": 17}, "managedBy": "x",
           "syncer.tls.caSecret": "another",
           "syncer.storage.storageClassName": "b",
           "syncer.storage.url": "s3://models/others",
           }.get(fixed.path, 5)  # fmt: skip
    for key in reversed(fixed.path.split(".")):
        new = {key: new}
    if fixed.path == "steps":
        new = {"steps": None, "tokens": 600}
    of = "bucket" if fixed.path == "syncer.storage.url" else "tiny"
    assert fixed.text in refused(new, of)


def test_the_shards_stay_in_their_region_when_another_one_is_put_in_front(
    refused: Refused, kube: Kubectl, shared_namespace: str
) -> None:
    job = Job(kube=kube, namespace=shared_namespace, name="tiny")

    def edit(home: str, *regions: str) -> dict[str, object]:
        return {"regions": [{"name": each} for each in regions], "syncer": {"region": home}}

    in_front = refused(edit("", "ap-south", "us-east", "eu-west"))
    assert "keep that region the first" in in_front
    job.patch(**edit("", "us-east", "ap-south", "eu-west"))
    job.patch(**edit("us-east", "ap-south", "us-east", "eu-west"))


@pytest.fixture(scope="module")
def jobs(atoll: Installed, kube: Kubectl, shared_namespace: str) -> dict[str, Job]:
    """The jobs of this file that tests wait for: all begin at once."""
    wrong = pace(300)
    wrong["template"]["spec"]["containers"][0]["args"] = ["--batch=-1"]
    two, one = {"us-east": 2}, {"us-east": 1}
    return {
        "begins": apply(kube, shared_namespace, "begins", two),
        "grows": apply(
            kube, shared_namespace, "grows", two, sync={"preset": "DiLoCo", "period": 4}
        ),
        "stops": apply(kube, shared_namespace, "stops", one),
        "waits": apply(kube, shared_namespace, "waits", one, suspend=True),
        "wrong": apply(kube, shared_namespace, "wrong", one, learner=wrong),
    }


@pytest.mark.parametrize("preset", ["DecoupledDiLoCo", "DiLoCo"])
def test_learners_and_regions_come_and_go_and_restart_nobody(
    preset: str, jobs: dict[str, Job]
) -> None:
    job = jobs["grows" if preset == "DiLoCo" else "begins"]
    job.trains(2)
    before = job.uids()
    job.patch(regions=[{"name": "us-east", "learners": 3}, {"name": "eu-west", "learners": 1}])
    job.trains(4)
    assert before.items() <= job.uids().items()
    assert not job.events("DegradedTrue")  # one that is asked for and starts is not missing
    commits = len(job.commits())
    until("merges continue", lambda: len(job.commits()) > commits + 2)
    job.patch(regions=[{"name": "us-east", "learners": 2}])
    until("two are left", lambda: len(job.pods("learner")) == 2)
    commits = len(job.commits())
    until("merges continue with two", lambda: len(job.commits()) > commits + 2)
    assert job.uids() == before
    until("status has 2", lambda: job.get()["status"]["columns"]["learners"] == "2/2")


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


@pytest.mark.parametrize(
    "storage", ["Ephemeral", pytest.param("PersistentVolumeClaim", marks=pytest.mark.long)]
)
def test_suspend_takes_the_pods_and_resume_goes_on_with_the_run(
    storage: str, jobs: dict[str, Job], train: Callable[..., Job]
) -> None:
    syncer = {"shards": 1, "storage": {"type": storage, "size": "1Gi"}}
    keeps = storage == "PersistentVolumeClaim"
    job = train("keeps", {"us-east": 1}, syncer=syncer) if keeps else jobs["stops"]
    job.trains(1)
    until("some versions", lambda: len(job.commits()) > 4)
    if keeps:
        job.patch(syncer={"storage": {"size": "2Gi"}})
        until("it is refused", lambda: job.condition("Accepted")["reason"] == "ChildrenRefused")
        assert job.is_true("Ready")
        job.patch(syncer={"storage": {"size": "1Gi"}}, steps=200_000)
        until("it is taken back", lambda: job.is_true("Accepted"))
        until("the shard knows", lambda: _length(job) == 200_000)
        job.patch(steps=150_000)
        until("the typo is taken back", lambda: _length(job) == 150_000)
    before = job.answer()
    job.patch(suspend=True)
    until("suspended", lambda: job.is_true("Suspended"))
    assert not job.pods("learner")
    if keeps:
        until("no shard is left", lambda: not job.pods())
    job.patch(suspend=False)
    job.trains(1)
    until("the condition follows", lambda: job.condition("Suspended")["status"] == "False")
    after = job.answer()
    assert after.run == before.run
    assert after.commits >= before.commits
    assert after.steps == (150_000 if keeps else 100_000)


def _length(job: Job) -> int:
    reply = job.status()
    return reply.steps if reply else 0


def test_a_job_created_suspended_has_no_pods_and_all_conditions(jobs: dict[str, Job]) -> None:
    job = jobs["waits"]
    until("suspended", lambda: job.is_true("Suspended"))
    assert [each["type"] for each in job.get()["status"]["conditions"]] == [*TYPES]
    assert not job.pods()
    until("it has an Event", lambda: bool(job.events("SuspendedTrue")))
    ((kind, message),) = job.events("SuspendedTrue")
    assert (kind, message.partition(":")[0]) == ("Normal", "Suspended is True")
    job.patch(suspend=False)
    until("its end, too", lambda: bool(job.events("SuspendedFalse")))
    ((kind, message),) = job.events("SuspendedFalse")
    assert (kind, message.partition(":")[0]) == ("Normal", "Suspended is False")


def test_bad_input_fails_the_job_and_leaves_no_pod(jobs: dict[str, Job]) -> None:
    job = jobs["wrong"]
    until("failed", lambda: job.is_true("Failed"))
    found = job.condition("Failed")
    assert found["reason"] == "BadInput"
    assert "exit code 64" in found["message"]
    until("it has an Event", lambda: bool(job.events("FailedTrue")))
    assert job.events("FailedTrue") == [("Warning", f"Failed is True: {found['message']}")]
    assert " FailedTrue " in job.kubectl("describe", "dtj", job.name)
    until("no pod is left", lambda: not job.pods())


def test_a_finished_job_goes_after_its_time_to_live(
    atoll: Installed, kube: Kubectl, shared_namespace: str
) -> None:
    ends = {"activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5}
    job = apply(kube, shared_namespace, "late", {"us-east": 1}, **ends)
    words = ("-n", shared_namespace, "get", "dtj", "late")
    until("gone", lambda: kube.attempt(*words).returncode != 0)
    # Its Event outlives it; the status that says so is there for 5 s, which a busy machine misses.
    ((kind, message),) = job.events("FailedTrue")
    assert kind == "Warning"
    assert message.startswith("Failed is True: spec.activeDeadlineSeconds of 5 have passed; ")
