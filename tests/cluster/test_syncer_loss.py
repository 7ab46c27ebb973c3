"""The syncer's node is lost: its shard comes back elsewhere."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from cluster.kubectl import Kubectl, until
from cluster.training import Job, Stopwatch

HOME, REFUGE = "c1-us-east-1", "c1-us-east-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A job of two learners in eu-west whose shard has been served from HOME, as it was then."""

    job: Job
    pod: str  # of the shard
    reply: pb.StatusReply
    learners: dict[str, str]
    tape: list[dict[str, Any]]

    @classmethod
    def begun(
        cls, train: Callable[..., Job], kube: Kubectl, name: str, storage: dict[str, str]
    ) -> "Served":
        """Once some versions are written."""
        syncer = {"region": "us-east", "shards": 1, "storage": storage}
        kube("cordon", REFUGE)
        try:
            job = train(name, {"us-east": 0, "eu-west": 2}, syncer=syncer)
        finally:
            kube("uncordon", REFUGE)
        until("some versions", lambda: len(job.commits()) > 8)
        (pod,) = job.pods("shard")
        assert job.node_of(pod) == HOME
        reply = job.answer()
        learners = job.uids("learner")
        return cls(job=job, pod=pod, reply=reply, learners=learners, tape=job.tape())

    def is_replaced(self) -> bool:
        """Whether there is another pod of the shard."""
        return bool(self.job.pods("shard").keys() - {self.pod})

    def goes_on(self, *, keeps: bool) -> None:
        """Wait for a commit of the new shard: it serves the same run to the same learners."""
        job, epoch = self.job, self.reply.epoch
        until("it commits", lambda: any(c["epoch"] > epoch for c in commits(job.tape())))
        again = job.answer()
        assert again.run == self.reply.run
        assert again.epoch > epoch
        assert job.uids("learner") == self.learners
        assert_that_no_version_was_lost(self.tape, job.tape(), keeps=keeps)
        until("the syncer is ready", lambda: job.is_true("SyncerReady"))


KEPT = ("PersistentVolumeClaim", "ObjectStore")


@pytest.mark.parametrize("storage", [*KEPT, pytest.param("Ephemeral", marks=pytest.mark.long)])
def test_a_shard_comes_back_on_another_node_with_the_same_run(
    storage: str,
    train: Callable[..., Job],
    cut: Callable[..., None],
    kube: Kubectl,
    request: pytest.FixtureRequest,
) -> None:
    fields: dict[str, dict[str, str]] = {"PersistentVolumeClaim": {"size": "1Gi"}}
    if storage == "ObjectStore":
        fields[storage] = request.getfixturevalue("bucket")
    served = Served.begun(train, kube, "keeps", {"type": storage, **fields.get(storage, {})})
    job = served.job
    steps = {slot.slot: slot.t_m for slot in job.answer().slots}
    watch = Stopwatch()
    cut(HOME, how="power")
    watch.until("object", served.is_replaced)
    watch.until("trains", lambda: len(job.training()) == 2)
    sys.stderr.write(f"\nsyncer's node, {storage}: {watch.laps}\n")
    served.goes_on(keeps=storage in KEPT)  # a bucket's log fills the new pod's tape
    (new,) = job.pods("shard")
    assert job.node_of(new) == REFUGE
    if storage == "Ephemeral":
        assert_that_learners_gave_all_back(served.tape, job.tape())
    now = {slot.slot: slot.t_m for slot in job.answer().slots}
    assert all(now[slot] > count for slot, count in steps.items())
    message = job.condition("SyncerReady").get("message", "")
    assert ("storage is Ephemeral" in message) == (storage == "Ephemeral")

    job.kubectl("delete", "dtj", job.name, "--wait=false")
    kinds = "statefulset,deployment,pod,configmap,service,pdb,serviceaccount,pvc"
    kept = {"persistentvolumeclaim/keeps-syncer-0"} if storage == "PersistentVolumeClaim" else set()

    def left() -> set[str]:
        words = ("get", kinds, "-l", "atoll.dev/job=keeps", "-o", "name")
        return set(job.kubectl(*words).split())

    until("only retained storage is left", lambda: left() == kept)


def commits(tape: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in tape if line["event"] == "commit"]


def assert_that_learners_gave_all_back(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """The tape says so of each slice, with the version, which is not older than the last known."""
    back = {line["slice"]: line for line in commits(after) if line.get("recovered")}
    newest = {line["slice"]: line["version"] for line in commits(before)}
    assert back.keys() == newest.keys()
    for name, line in back.items():
        assert line["reason"].startswith("StoreRecovered: version ")
        assert newest[name] <= line["base"] < line["version"]


def assert_that_no_version_was_lost(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, keeps: bool
) -> None:
    """Every slice continues above what it had; with a lasting log without a gap."""
    for name in {line["slice"] for line in commits(before)}:
        old = [line["version"] for line in commits(before) if line["slice"] == name]
        new = [line["version"] for line in commits(after) if line["slice"] == name]
        if keeps:
            assert new[: len(old)] == old
            assert new == list(range(new[0], new[0] + len(new)))
        else:
            assert min(new) > max(old)
