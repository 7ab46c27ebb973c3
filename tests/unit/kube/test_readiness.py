"""Pods of learners are Ready while their learner is in training, and drains count these."""

from typing import Any

import pytest

from atoll_operator.kube.edges.api import NODES, path
from atoll_operator.kube.names import TRAINING_GATE
from atoll_operator.kube.observed import objects
from atoll_operator.kube.plan.status import IDLE_SECONDS, marks
from unit.kube.cluster_values import children, reply
from unit.kube.scenes import scene
from unit.kube.world import KEY, World, lost_learner

IDLE = {"uid-us-east-0": 60.0}


@pytest.mark.parametrize(
    ("text", "idle", "marked"),
    [
        *(  # as soon as its learner trains, or makes a pause
            (f"us-east-0 gated; {state} us-east-0", {}, {"tiny-us-east-0": True})
            for state in ("Training", "Stalled")
        ),
        *(
            (f"us-east-0 gated; {state} us-east-0", {}, {})
            for state in ("Joining", "Recovering", "Lost", "Left")
        ),
        ("us-east-0 gated uid=next; Training us-east-0", {}, {}),  # another pod of the slot
        # not any more when it has not trained for a while
        ("us-east-0 marked; syncer serves", {"uid-us-east-0": IDLE_SECONDS - 0.1}, {}),
        (
            "us-east-0 marked; syncer serves",
            {"uid-us-east-0": IDLE_SECONDS},
            {"tiny-us-east-0": False},
        ),
        ("us-east-0 marked; Training us-east-0", {}, {}),
        # what cannot be seen changes no pod
        *(
            (f"us-east-0 {flag}{syncer}", IDLE, {})
            for flag in ("gated", "marked")
            for syncer in ("", "; Lost us-east-0; syncer recovering")
        ),
        # only those that ask for it
        ("us-east-0; shard gated; Training us-east-0", {}, {}),
        *((f"us-east-0 gated {flag}; Training us-east-0", {}, {}) for flag in ("going", "evicted")),
        (  # all hosts of a learner together
            "us-east-0/* gated; Training us-east-0",
            {},
            {"tiny-us-east-0-0": True, "tiny-us-east-0-1": True},
        ),
        (
            "us-east-0/* marked; syncer serves",
            IDLE,
            {"tiny-us-east-0-0": False, "tiny-us-east-0-1": False},
        ),
    ],
)
def test_a_pod_is_ready_while_its_learner_trains(
    text: str, idle: dict[str, float], marked: dict[str, bool]
) -> None:
    seen = scene(text, "spec.learner.hosts=2")
    assert {each.pod: each.trains for each in marks(seen.pods, seen.replies, idle)} == marked
    assert not marks(seen.pods, [*seen.replies, None], idle)  # while a shard does not answer


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
