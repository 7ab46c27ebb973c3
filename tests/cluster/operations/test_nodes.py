"""What a person does to nodes and pods: drain, cordon, delete, evict."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, until
from cluster.person import Person
from cluster.training import Job, Stopwatch


@pytest.fixture
def uncordoned(lab: LabCommand, kube: Kubectl) -> Iterator[None]:
    """Every node takes pods again after the test."""
    yield
    names = kube("get", "nodes", "-o", "name").split()
    kube("uncordon", *names)


def moved(person: Person, pod: str, uid: str) -> bool:
    return person.uids().get(pod, uid) != uid


def test_a_drain_moves_one_learner_and_the_others_train_on(
    running: Person, uncordoned: None
) -> None:
    before = running.uids()
    node = running.job.node_of("tiny-eu-west-0")
    running.types(f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=600s")
    until("moved", lambda: moved(running, "tiny-eu-west-0", before["tiny-eu-west-0"]))
    running.trains(2)
    assert running.job.node_of("tiny-eu-west-0") != node
    assert running.uids()["tiny-us-east-0"] == before["tiny-us-east-0"]


LOADS = """- name: eu-west
      learners: 3
      podOverrides:
        command: [sh, -c, 'sleep 60; exec atoll-worker light:main "$@"', sh]
        topologySpreadConstraints:
          - maxSkew: 1
            topologyKey: kubernetes.io/hostname
            whenUnsatisfiable: ScheduleAnyway
            labelSelector: {matchLabels: {atoll.dev/job: tiny, atoll.dev/region: eu-west}}"""


@pytest.mark.long
def test_a_drain_of_three_nodes_in_a_row_keeps_the_quorum_while_pods_load_for_60_s(
    person: Person, uncordoned: None
) -> None:
    person.edits(("- {name: eu-west, learners: 1}", LOADS), ("quorum: 1", "quorum: 3"))
    person.trains(4)
    nodes = {person.job.node_of(f"tiny-eu-west-{ordinal}") for ordinal in range(3)}
    assert len(nodes) == 3
    watch = Stopwatch()
    with counted(person.job) as counts:
        for node in sorted(nodes):
            person.types(
                f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data --timeout=900s"
            )
            watch.until(f"{node} is empty", lambda: True)
        watch.until("all train", lambda: len(person.job.training()) == 4)
    sys.stderr.write(f"\n{watch.laps}, {min(counts)} to {max(counts)} learners trained\n")
    assert min(counts) >= 3


@contextmanager
def counted(job: Job) -> Iterator[list[int]]:
    """How many learners train, each time that the shard is asked meanwhile: twice a second."""
    counts: list[int] = []
    over = threading.Event()
    own = Job(kube=job.kube, namespace=job.namespace, name=job.name)  # with its own channel

    def count() -> None:
        while not over.wait(0.5):
            if (reply := own.status()) is not None:
                counts.append(sum(slot.state == pb.SLOT_TRAINING for slot in reply.slots))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


def test_a_shards_pod_that_is_evicted_comes_back_with_the_same_run(running: Person) -> None:
    before = running.uids()
    run = running.run()
    (shard,) = running.job.pods("shard")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": shard, "namespace": running.namespace},
    }
    where = f"/api/v1/namespaces/{running.namespace}/pods/{shard}/eviction"
    # Refused for a moment where the budget's controller has yet to count a pod that became Ready.
    words = ("create", "--raw", where, "-f", "-")
    until(
        "evicted", lambda: not running.kube.attempt(*words, stdin=json.dumps(eviction)).returncode
    )
    until("another pod", lambda: shard not in running.job.pods("shard"))
    running.trains(2)
    assert running.job.answer().run == run
    assert running.uids("learner").items() <= before.items()
