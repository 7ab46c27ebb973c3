"""Pods of learners are Ready while their learner is in training, and drains count these."""

from collections.abc import Sequence
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube import objects
from atoll_operator.kube.edges.api import NODES, path
from atoll_operator.kube.names import TRAINING_GATE
from atoll_operator.kube.observation import Pod
from atoll_operator.kube.plan.readiness import IDLE_SECONDS, marks
from unit.kube.cluster_values import children, hosts, learner, reply, shard
from unit.kube.world import KEY, World, lost_learner

STATES = ("Joining", "Training", "Stalled", "Recovering", "Lost", "Left")


def pod(trains: bool, **more: Any) -> Pod:
    return learner("us-east-0", "n1", gated=True, trains=trains, **more)


def marked(
    pods: Sequence[Pod], *replies: pb.StatusReply | None, idle: dict[str, float] | None = None
) -> list[tuple[str, bool]]:
    return [(each.pod, each.trains) for each in marks(pods, replies, idle or {})]


@pytest.mark.parametrize("state", STATES)
def test_a_pod_is_ready_as_soon_as_its_learner_trains_or_makes_a_pause(state: str) -> None:
    busy = state in ("Training", "Stalled")
    found = marked([pod(False)], reply(us_east_0=state))
    assert found == ([("tiny-us-east-0", True)] if busy else [])


@pytest.mark.parametrize("seconds", [IDLE_SECONDS - 0.1, IDLE_SECONDS])
def test_a_pod_is_not_ready_any_more_when_its_learner_has_not_trained_for_a_while(
    seconds: float,
) -> None:
    found = marked([pod(True)], reply(), idle={"uid-us-east-0": seconds})
    assert found == ([("tiny-us-east-0", False)] if seconds >= IDLE_SECONDS else [])


def test_another_pod_of_the_slot_is_not_ready() -> None:
    assert marked([pod(False, uid="next")], reply(us_east_0="Training")) == []


def test_what_cannot_be_seen_changes_no_pod() -> None:
    starting = reply()
    starting.state = pb.SHARD_RECOVERING
    for replies in ((), (None,), (reply(us_east_0="Training"), None), (starting,)):
        assert marked([pod(False)], *replies) == []
        assert marked([pod(True)], *replies, idle={"uid-us-east-0": 60.0}) == []


def test_only_pods_that_ask_for_it_are_marked() -> None:
    trains = reply(us_east_0="Training")
    assert marked([learner("us-east-0", "n1"), shard(0, "n1", gated=True)], trains) == []
    assert marked([pod(False, terminating=True)], trains) == []
    assert marked([pod(False, phase="Failed")], trains) == []
    assert marked([pod(True)], trains) == []


def test_all_hosts_of_a_learner_are_ready_together() -> None:
    pair = hosts("us-east-0", "n1", "n2", gated=True, trains=False)
    assert [name for name, _ in marked(pair, reply(us_east_0="Training"))] == [
        "tiny-us-east-0-0", "tiny-us-east-0-1",
    ]  # fmt: skip
    pair = hosts("us-east-0", "n1", "n2", gated=True, trains=True)
    assert len(marked(pair, reply(), idle={"uid-us-east-0": 60.0})) == 2


def test_the_template_of_learners_asks_for_it_beside_the_users_gates() -> None:
    found = children("spec.learner.template.spec.readinessGates=[{conditionType: a/b}]").objects()
    gates = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"].get("readinessGates")
        for each in found
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    own = [{"conditionType": "a/b"}, {"conditionType": TRAINING_GATE}]
    assert gates == {
        "tiny-us-east": own, "tiny-eu-west": own, "tiny-syncer-0": None, "tiny-syncer-1": None,
        "tiny-evaluator": None,
    }  # fmt: skip


def test_a_pass_writes_the_mark_once_and_takes_it_back() -> None:
    world: World = lost_learner()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    world.nodes.take(NODES, "MODIFIED", {"metadata": {"name": "n1"}, "status": ready})
    world.server.children[path("Pod", "demo", "tiny-us-east-0")]["spec"] |= {
        "readinessGates": [{"conditionType": TRAINING_GATE}]
    }
    trains = reply(us_east_0="Training")
    trains.slots[0].uid = "uid-tiny-us-east-0"
    world.shards.replies = [trains]
    assert "mark tiny-us-east-0 True" in world.run()
    assert not [each for each in world.run() if each.startswith("mark")]
    world.shards.replies = [reply(us_east_0="Lost")]
    assert not [each for each in world.run() if each.startswith("mark")]
    memory = world.reconciler.memories[KEY]
    memory.idle_since = {uid: at - IDLE_SECONDS for uid, at in memory.idle_since.items()}
    assert "mark tiny-us-east-0 False" in world.run()


def test_a_silent_registrar_forgets_nothing_of_who_is_idle() -> None:
    world = lost_learner()
    world.run()
    known = dict(world.reconciler.memories[KEY].idle_since)
    assert set(known) == {"uid-tiny-us-east-0"}
    world.reconciler.memories[KEY].replies.clear()
    world.shards.replies = [None]
    world.run()
    assert world.reconciler.memories[KEY].idle_since == known


def test_a_gate_and_its_condition_are_read_from_a_pod() -> None:
    raw: dict[str, Any] = {
        "metadata": {"name": "tiny-us-east-0", "uid": "u"},
        "spec": {"readinessGates": [{"conditionType": TRAINING_GATE}]},
        "status": {"conditions": [{"type": TRAINING_GATE, "status": "True"}]},
    }
    assert (objects.pod(raw).gated, objects.pod(raw).trains) == (True, True)
    raw["status"]["conditions"][0]["status"] = "False"
    assert not objects.pod(raw).trains
    raw["spec"] = {}
    assert not objects.pod(raw).gated
