"""A node is lost in mid-training: its pods are replaced elsewhere, and the others go on."""

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import LabCommand
from cluster.installed import Installed
from cluster.kubectl import Kubectl, until
from cluster.training import Job, Stopwatch, largest_gap, manifest, pace

REGIONS = {"us-east": 1, "eu-west": 1, "ap-south": 1}
LOST = "eu-west"
BEFORE_SECONDS = 60.0
OBJECT_SECONDS_MAX = 25.0
GRACE_SLACK_SECONDS = 0.5

Start = Callable[..., Job]


@pytest.fixture
def training(atoll: Installed, kube: Kubectl, namespace: str) -> Start:
    """Apply a job and return it once all its learners train."""

    def apply(name: str, regions: dict[str, int], **spec: object) -> Job:
        job = Job(kube=kube, namespace=namespace, name=name)
        kube.apply(namespace, manifest(name, regions, **{"learner": pace(300), **spec}))
        count = sum(regions.values())
        until("all train", lambda: len(job.training()) == count, 240)
        return job

    return apply


@pytest.fixture
def cut(lab: LabCommand) -> Iterator[Callable[[str, str], None]]:
    """Lose nodes; all of them come back after the test."""
    lost: list[str] = []

    def lose(node: str, how: str) -> None:
        lost.append(node)
        lab("cut", node, "--how", how)

    yield lose
    for node in lost:
        lab("heal", node)


def _steady(seconds: float) -> None:
    """Let a job train: what is measured later is compared with this span."""
    began = time.monotonic()
    until("a steady span", lambda: time.monotonic() - began >= seconds, seconds + 5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["network", pytest.param("power", marks=pytest.mark.long)])
def test_the_learner_of_a_lost_node_is_replaced_elsewhere_and_the_others_go_on(
    how: str, training: Start, cut: Callable[[str, str], None], lab: LabCommand, kube: Kubectl
) -> None:
    job = training("loss", REGIONS)
    _steady(BEFORE_SECONDS)
    pod, slot = f"loss-{LOST}-0", f"{LOST}-0"
    uids, node = job.uids(), job.node_of(pod)
    watch = Stopwatch()
    cut(node, how)
    object_seconds = watch.until("object", lambda: job.uids().get(pod, uids[pod]) != uids[pod], 60)
    new = job.uids()[pod]
    watch.until("scheduled", lambda: bool(job.node_of(pod)), 30)
    watch.until("trains", lambda: job.training().get(slot) == new, 200)
    commits, until_now = job.commits(), time.time()
    before = largest_gap(commits, watch.began - BEFORE_SECONDS, watch.began)
    during = largest_gap(commits, watch.began, until_now)
    measured = f"{how}: {watch.laps}, gap before {before:.1f} s, during {during:.1f} s"
    assert object_seconds <= OBJECT_SECONDS_MAX, measured
    assert job.node_of(pod) != node, measured
    assert during <= max(GRACE_SLACK_SECONDS, 2 * before), measured
    others = {name: uid for name, uid in uids.items() if name != pod}
    assert others.items() <= job.uids().items(), measured
    lab("heal", node)
    until("ready again", lambda: kube.node_is_ready(node), 60)
    if how == "network":
        until("the old container is refused", lambda: _refused(job) > 0, 60)
    incarnations = [each for each in job.tape() if each.get("event") == "taken"]
    assert [each["slot"] for each in incarnations].count(slot) == 2
    events = job.kubectl("get", "events", "--field-selector", "reason=NodeLost", "-o", "name")
    assert events
    sys.stderr.write(f"\n{measured}\n")


def _refused(job: Job) -> int:
    reply = job.status()
    return reply.refused_zombies if reply else 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_learner_whose_kubelet_died_trains_on(
    training: Start, cut: Callable[[str, str], None], kube: Kubectl
) -> None:
    job = training("headless", REGIONS)
    pod, slot = f"headless-{LOST}-0", f"{LOST}-0"
    uid, node = job.uids()[pod], job.node_of(pod)
    cut(node, "kubelet")
    until("not ready", lambda: not kube.node_is_ready(node), 90)
    steps = {s.slot: s.t_m for s in job.status().slots}[slot]  # type: ignore[union-attr]
    _steady(30)
    reply = job.status()
    assert reply is not None
    (found,) = [s for s in reply.slots if s.slot == slot]
    assert (found.uid, found.state) == (uid, "Training")
    assert found.t_m > steps
    assert job.uids()[pod] == uid
