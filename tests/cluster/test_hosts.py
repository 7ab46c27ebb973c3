"""Learners of two hosts each train on a cluster as one learner each."""

from pathlib import Path

import yaml

from cluster.installed import Installed
from cluster.kubectl import Kubectl, Object, until
from cluster.training import TRAIN_SECONDS_MAX, Job, progress

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hosts.yaml"
HOSTS = 2
SLOTS = ("us-east-0", "eu-west-0")
SETS = {f"hosts-{slot}" for slot in SLOTS}
TICKS = 200
LENGTH = 100_000  # which no test reaches
TOKENS = 4 * 64  # of a process in each step


def example(**spec: object) -> Object:
    """Return the example with other fields of its spec, and time to look at it."""
    document = yaml.safe_load(EXAMPLE.read_text())
    (container,) = document["spec"]["learner"]["template"]["spec"]["containers"]
    container["args"].append("--step-milliseconds-min=150")
    return {**document, "spec": {**document["spec"], **spec}}


def test_learners_of_two_hosts_train_to_the_end(
    atoll: Installed, kube: Kubectl, namespace: str
) -> None:
    job = Job(kube=kube, namespace=namespace, name="hosts")
    kube.apply(namespace, example(steps=LENGTH))
    job.trains(len(SLOTS))
    pods = job.pods("learner")
    assert pods.keys() == {f"{name}-{host}" for name in SETS for host in range(HOSTS)}
    heads = {slot: pods[f"hosts-{slot}-0"]["metadata"]["uid"] for slot in SLOTS}
    assert {slot: uid for slot, (uid, _) in progress(job.answer()).items()} == heads
    until("both are ready", lambda: _ready(job) == {"us-east": 1, "eu-west": 1})
    until("both have made a step", lambda: len([n for n in job.steps().values() if n]) == 2)
    registrar = job.answer()
    for slot in registrar.slots:
        assert (slot.slot in SLOTS, slot.incarnation) == (True, 1)
        assert slot.tokens % (HOSTS * TOKENS) == 0, "both hosts count"
        assert slot.tokens > TOKENS * slot.t_m, "of one process"
    job.patch(steps=TICKS)  # only now: it does not end while it is looked at
    until("Complete", lambda: job.is_true("Complete"), TRAIN_SECONDS_MAX)
    status = job.get()["status"]
    assert status["progress"]["step"] >= TICKS
    assert (status["learnersDesired"], status["columns"]["learners"]) == (2, "0/2")
    assert {each["replaced"] for each in status["regions"]} == {0}
    until("no host is left", lambda: not job.pods("learner"))


def _ready(job: Job) -> dict[str, int]:
    found = job.get().get("status", {}).get("regions", [])
    return {each["name"]: each.get("ready", 0) for each in found}
