"""A node is lost in mid-training: its learner is replaced elsewhere, and the others continue."""

import sys
import time
from collections.abc import Callable

import pytest

from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, Stopwatch, largest_gap, pass_seconds

REGIONS = {"us-east": 1, "eu-west": 1, "ap-south": 1}
LOST = "eu-west"
BEFORE_SECONDS = 10.0
AWAY_SECONDS = 105.0
ENDED_SECONDS = 15.0  # a kubelet that is back ends what was deleted meanwhile within 6 s
GAPS = 4

Train = Callable[..., Job]
Cut = Callable[..., None]


@pytest.mark.parametrize("how", ["network", pytest.param("power", marks=pytest.mark.long)])
def test_the_learner_of_a_lost_node_is_replaced_elsewhere_and_the_others_go_on(
    how: str, train: Train, cut: Cut, lab: LabCommand, kube: Kubectl, atoll: Installed
) -> None:
    job = train("loss", REGIONS)
    pass_seconds(BEFORE_SECONDS)
    pod, slot = f"loss-{LOST}-0", f"{LOST}-0"
    uids, node = job.uids(), job.node_of(pod)
    counted = atoll.metric("atoll_operator_node_replacement_seconds_count")
    watch = Stopwatch()
    cut(node, how=how)
    object_seconds = watch.until("object", lambda: job.uids().get(pod, uids[pod]) != uids[pod])
    new = job.uids()[pod]
    watch.until("scheduled", lambda: bool(job.node_of(pod)))
    watch.until("trains", lambda: job.training().get(slot) == new)
    until_now, commits = time.time(), job.commits()  # before the time that this itself takes
    before = largest_gap(commits, watch.began - BEFORE_SECONDS, watch.began)
    during = largest_gap(commits, watch.began, until_now)
    measured = f"{how}: {watch.laps}, gap before {before:.2f} s, during {during:.2f} s"
    sys.stderr.write(f"\n{measured}\n")
    assert job.node_of(pod) != node, measured
    # No learner waits for the learner that is lost; a busy machine has gaps of its own.
    assert during < max(object_seconds / 2, GAPS * before), measured
    others = {name: uid for name, uid in uids.items() if name != pod}
    assert others.items() <= job.uids().items(), measured
    events = job.kubectl("get", "events", "--field-selector", "reason=NodeLost", "-o", "name")
    assert events
    until(
        "the replacement is counted",
        lambda: atoll.metric("atoll_operator_node_replacement_seconds_count") == counted + 1,
    )
    if how == "network":  # it comes back before its kubelet, which would end it at once
        cut(node, how="kubelet")
        lab("heal", node, "--only", "network")
        until("the old container is refused", lambda: _refused(job) > 0)
    lab("heal", node)
    until("the old container is gone", lambda: _is_gone(kube, node, uids[pod]))
    _assert_that_nothing_of_the_old_container_was_merged(job, slot)


def _refused(job: Job) -> int:
    reply = job.status()
    return reply.refused_zombies if reply else 0


def _is_gone(kube: Kubectl, node: str, uid: str) -> bool:
    """Whether a node's kubelet answers, and no container of that pod runs there."""
    asked = kube.attempt("get", "--raw", f"/api/v1/nodes/{node}/proxy/runningpods/")
    return asked.returncode == 0 and uid not in asked.stdout


def _assert_that_nothing_of_the_old_container_was_merged(job: Job, slot: str) -> None:
    """Once the new incarnation was taken, no commit has a token of the old one."""
    tape = job.tape()
    taken = [i for i, line in enumerate(tape) if line["event"] == "taken" and line["slot"] == slot]
    assert len(taken) == 2
    merged = [
        each["incarnation"]
        for line in tape[taken[1] :] if line["event"] == "commit"
        for each in line["participants"] if each["slot"] == slot
    ]  # fmt: skip
    assert set(merged) == {tape[taken[1]]["incarnation"]}


@pytest.mark.long
def test_a_learner_whose_kubelet_was_away_for_105_s_trains_on(
    train: Train, cut: Cut, lab: LabCommand, kube: Kubectl
) -> None:
    job = train("headless", REGIONS)
    pod, slot = f"headless-{LOST}-0", f"{LOST}-0"
    uid, node = job.uids()[pod], job.node_of(pod)
    watch = Stopwatch()
    cut(node, how="kubelet")
    watch.until("not ready", lambda: not kube.node_is_ready(node))
    steps = job.steps()[slot]
    pass_seconds(max(30.0, AWAY_SECONDS - watch.laps["not ready"]))
    assert job.training()[slot] == uid
    assert job.steps()[slot] > steps
    lab("heal", node)
    watch.until("ready again", lambda: kube.node_is_ready(node))
    sys.stderr.write(f"\nkubelet away: {watch.laps}\n")
    steps = job.steps()[slot]
    pass_seconds(ENDED_SECONDS)
    assert job.training()[slot] == uid
    assert job.steps()[slot] > steps
    found = job.pods("learner")[pod]
    assert "deletionTimestamp" not in found["metadata"]
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.long
def test_a_region_of_one_node_that_dies_waits_for_another_and_reports_it(
    train: Train, cut: Cut, kube: Kubectl
) -> None:
    job = train("alone", {"us-east": 1, "ap-south": 1})
    pod, slot = "alone-ap-south-0", "ap-south-0"
    uid, node = job.uids()[pod], job.node_of(pod)
    cut(node, how="power")
    until("a new object", lambda: job.uids().get(pod, uid) != uid)

    def message() -> str:
        return job.condition("Degraded").get("message", "")

    until("Degraded names its wait", lambda: f"{pod} waits for a node" in message())
    assert job.is_true("Progressing")
    (other,) = [f"c1-{LOST}-5"]
    region = "topology.kubernetes.io/region"
    kube("label", "node", other, f"{region}=ap-south", "--overwrite")
    try:
        until("trains", lambda: job.training().get(slot) == job.uids()[pod])
        assert job.node_of(pod) == other
        until("all is well", lambda: not job.is_true("Degraded"))
    finally:
        kube("label", "node", other, f"{region}={LOST}", "--overwrite")
