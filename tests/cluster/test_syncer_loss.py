"""The syncer's node is lost: its shard comes back elsewhere, with the same run."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cluster.kubectl import Kubectl, until
from cluster.training import Job, Stopwatch

HOME, REFUGE = "c1-us-east-1", "c1-us-east-2"


@pytest.mark.parametrize(
    "storage", ["PersistentVolumeClaim", pytest.param("Ephemeral", marks=pytest.mark.long)]
)
def test_a_shard_comes_back_on_another_node_with_the_same_run(
    storage: str, train: Callable[..., Job], cut: Callable[..., None], kube: Kubectl
) -> None:
    kube("cordon", REFUGE)
    try:
        job = train(
            "keeps", {"us-east": 0, "eu-west": 2},
            syncer={"region": "us-east", "shards": 1, "storage": {"type": storage, "size": "1Gi"}},
        )  # fmt: skip
    finally:
        kube("uncordon", REFUGE)
    (pod,) = job.pods("shard")
    until("some versions", lambda: len(job.commits()) > 8)
    reply, learners, tape = job.status(), job.uids("learner"), job.tape()
    assert reply is not None
    assert job.node_of(pod) == HOME
    steps = job.steps()

    watch = Stopwatch()
    cut(HOME, how="power")
    watch.until("object", lambda: bool(job.pods("shard").keys() - {pod}))
    watch.until("trains", lambda: len(job.training()) == 2)
    sys.stderr.write(f"\nsyncer's node, {storage}: {watch.laps}\n")
    until("it commits", lambda: any(c["epoch"] > reply.epoch for c in commits(job.tape())))
    again = job.status()
    assert again is not None
    assert again.run == reply.run
    assert again.epoch > reply.epoch
    (new,) = job.pods("shard")
    assert job.node_of(new) == REFUGE
    assert job.uids("learner") == learners
    assert all(job.steps()[slot] > count for slot, count in steps.items())
    assert_that_no_version_was_lost(tape, job.tape(), keeps=storage == "PersistentVolumeClaim")
    until("the syncer is ready", lambda: job.is_true("SyncerReady"))
    said = job.condition("SyncerReady").get("message", "")
    assert ("storage is Ephemeral" in said) == (storage == "Ephemeral")

    job.kubectl("delete", "dtj", job.name, "--wait=false")
    kinds = "statefulset,deployment,pod,configmap,service,pdb,serviceaccount,pvc"
    kept = {"persistentvolumeclaim/keeps-syncer-0"} if storage == "PersistentVolumeClaim" else set()

    def left() -> set[str]:
        words = ("get", kinds, "-l", "atoll.dev/job=keeps", "-o", "name")
        return set(job.kubectl(*words).split())

    until("only retained storage is left", lambda: left() == kept)


def commits(tape: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in tape if line["event"] == "commit"]


def assert_that_no_version_was_lost(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, keeps: bool
) -> None:
    """Every slice goes on above what it had; with a lasting log without a gap."""
    for name in {line["slice"] for line in commits(before)}:
        old = [line["version"] for line in commits(before) if line["slice"] == name]
        new = [line["version"] for line in commits(after) if line["slice"] == name]
        if keeps:
            assert new[: len(old)] == old
            assert new == list(range(new[0], new[0] + len(new)))
        else:
            assert min(new) > max(old)
