"""Most nodes of a region fall silent at once: the operator holds, and reports it.

Nodes without pods of the job are lost beside them in the other ways, since Kubernetes takes long to
see that: all are not Ready until they are healed.
"""

import sys
from collections.abc import Callable

import pytest

from cluster.conftest import LabCommand
from cluster.kubectl import Kubectl, until
from cluster.training import Job, Stopwatch, pass_seconds, progress

REGION = "eu-west"
LEARNERS = 2
OFF, DEAD = "c1-ap-south-1", "c1-us-east-1"  # and these lose their power, and their kubelet
HELD_SECONDS = 25.0  # more than until nodes are given up, less than until Kubernetes evicts pods


@pytest.mark.parametrize(
    "release",
    [
        "heal",
        pytest.param("annotate", marks=pytest.mark.long),
    ],
)
def test_the_loss_of_4_of_5_nodes_is_held_until(
    release: str,
    train: Callable[..., Job],
    cut: Callable[..., None],
    lab: LabCommand,
    kube: Kubectl,
) -> None:
    kube("cordon", DEAD)
    try:
        job = train("storm", {"us-east": 1, REGION: LEARNERS})
    finally:
        kube("uncordon", DEAD)
    slots = {f"{REGION}-{i}" for i in range(LEARNERS)}
    before = job.uids()
    homes = {job.node_of(f"storm-{slot}") for slot in slots}
    nodes = {f"c1-{REGION}-{i}" for i in range(1, 6)}
    spared = min(nodes - homes)
    silent = sorted(nodes - {spared})
    watch = Stopwatch()
    cut(*silent, how="network")
    cut(OFF, how="power")
    cut(DEAD, how="kubelet")
    states = [lab.node(node)["state"] for node in (min(homes), OFF, DEAD)]
    assert states == ["cut", "off", "kubelet-dead"]
    watch.until("held", lambda: bool(_held(job)))
    until("all four are silent", lambda: "4 of 5 nodes" in _held(job))
    commits = len(job.commits())
    pass_seconds(HELD_SECONDS)
    assert "4 of 5 nodes" in _held(job)
    assert job.uids() == before
    assert len(job.commits()) > commits
    assert progress(job.answer()).keys() == {"us-east-0"}

    for node in (*silent, OFF, DEAD) if release == "heal" else ():
        until(f"{node} not Ready", lambda node=node: not kube.node_is_ready(node))  # type: ignore[misc]
    watch = Stopwatch(laps=watch.laps)
    if release == "heal":
        lab("heal", *silent, OFF, DEAD)
    else:
        job.kubectl("annotate", "dtj", job.name, "atoll.dev/release-hold=true")
    watch.until("released", lambda: not _held(job))
    watch.until("all train", lambda: len(job.training()) == 1 + LEARNERS)
    if release == "heal":
        assert job.uids() == before
    else:
        assert {job.node_of(f"storm-{slot}") for slot in slots} == {spared}
        assert before["storm-us-east-0"] == job.uids()["storm-us-east-0"]
    sys.stderr.write(f"\nstorm, {release}: {watch.laps}\n")
    until("all is well", lambda: not job.is_true("Degraded"))


def _held(job: Job) -> str:
    """What the condition says of a loss that is held; empty: none is."""
    degraded = job.condition("Degraded")
    held = degraded.get("reason") == "NodeLossHeld"
    return str(degraded["message"]) if held else ""
