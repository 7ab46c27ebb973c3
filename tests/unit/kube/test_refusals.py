"""Objects that the API server refuses: named, tried again, and nothing is lost meanwhile."""

import time
from dataclasses import replace

import pytest

from atoll_operator.kube.edges.api import path
from atoll_operator.kube.observed.cache import EventFailure
from atoll_operator.kube.observed.memory import REFUSED_SECONDS
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.plan.planner import AGAIN_SECONDS
from atoll_operator.kube.plan.replacements import NodeState, Placement
from atoll_operator.kube.plan.status import problems
from unit.kube.cluster_values import shard
from unit.kube.world import KEY, World, lost_learner

pytestmark = pytest.mark.usefixtures("still")

QUOTA = 'pods "tiny-eu-west" is forbidden: exceeded quota'


def refused() -> World:
    """A job of which the API server refuses one StatefulSet, in the first pass."""
    world = World()
    world.server.refuses = {"tiny-eu-west": QUOTA}
    world.run()
    return world


def test_a_child_that_is_refused_is_named_and_the_others_are_made() -> None:
    world = refused()
    assert path("StatefulSet", "demo", "tiny-us-east") in world.server.children
    assert world.again == AGAIN_SECONDS
    world.run()
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "StatefulSet tiny-eu-west" in accepted["message"]
    assert QUOTA in accepted["message"]
    assert world.condition("SyncerReady") == "Unknown"  # all else is said as ever
    assert world.run() == []


def test_a_first_status_never_accepts_what_was_refused() -> None:
    world = refused()
    assert "status" not in world.server.log


def due_at(world: World, at: float) -> None:
    """Change when what was refused is tried again, in seconds of the monotonic clock."""
    found = world.reconciler.memories[KEY].refused
    found.update({key: replace(each, again_at=at) for key, each in found.items()})


def test_a_refused_child_is_tried_again_after_a_pause() -> None:
    began, world = time.monotonic(), refused()
    again = "apply Service tiny-eu-west"
    dues = [each.again_at for each in world.reconciler.memories[KEY].refused.values()]
    assert dues
    assert min(dues) >= began + REFUSED_SECONDS[0]
    due_at(world, float("inf"))
    assert again not in world.run()
    due_at(world, 0.0)
    assert again in world.run()
    assert world.condition("Accepted") == "False"
    world.server.refuses.clear()
    due_at(world, 0.0)
    assert again in world.run()
    world.run()
    assert world.condition("Accepted") == "True"


def test_an_edit_is_tried_at_once_whatever_was_refused() -> None:
    world = refused()
    world.run()
    assert world.server.job is not None
    world.server.refuses.clear()
    template = {"spec": {"priorityClassName": "high"}}
    world.server.job["spec"]["learner"] = {"template": template}
    assert "apply StatefulSet tiny-eu-west" in world.run()


def without_eu_west(said: str, refused: str) -> World:
    """The region eu-west is taken out of a running job, and an object is refused."""
    world = World(("evaluator", {}))
    world.run()
    assert world.server.job is not None
    world.server.refuses = {refused: said}
    world.server.job["spec"]["regions"] = [{"name": "us-east", "learners": 4}]
    world.server.job["spec"]["evaluator"] = {"template": {"spec": {"priorityClassName": "new"}}}
    return world


def test_nothing_is_deleted_while_what_replaces_it_is_refused() -> None:
    world = without_eu_west("a webhook says no", "tiny-us-east")
    assert not [each for each in world.run() if each.startswith("delete")]
    world.server.refuses.clear()
    world.reconciler.memories[KEY].refused.clear()
    assert "delete tiny-eu-west" in world.run()


def test_a_region_goes_although_the_evaluator_is_refused_and_makes_room_in_a_quota() -> None:
    for said, name in (("a webhook says no", "tiny-evaluator"), (QUOTA, "tiny-us-east")):
        assert "delete tiny-eu-west" in without_eu_west(said, name).run()


def test_a_pod_that_its_kubelet_cannot_start_is_named_with_what_an_event_says() -> None:
    world = lost_learner()
    made = world.server.children[path("Pod", "demo", "tiny-syncer-0-x")]
    made["status"] = {"phase": "Pending", "startTime": "2026-01-02T00:00:00Z"}
    said = EventFailure(
        uid=made["metadata"]["uid"], namespace="demo", event="e", message="Multi-Attach error",
        at=rfc3339(time.time()),
    )  # fmt: skip
    world.server.cache.failed("ADDED", said)
    world.shards.replies = [None]
    world.run()
    told = "tiny-syncer-0-x cannot start on n2: Multi-Attach error"
    assert world.said("SyncerReady")["message"] == told
    assert told in world.said("Degraded")["message"]


@pytest.mark.parametrize(
    ("event", "lost", "told"),
    [
        ("Multi-Attach error for volume v", ("n1",), True),
        ("Multi-Attach error for volume v", (), False),  # the other node works: it lets go
        ('secret "s" not found', ("n1",), False),
    ],
)
def test_a_disk_that_is_attached_to_a_lost_node_is_named_with_the_remedy(
    event: str, lost: tuple[str, ...], told: bool
) -> None:
    pod = shard(0, "n2", ready=False, phase="Pending", held_up=event, excluded=("n0", "n1"))
    found = problems([pod], Placement(lost=dict.fromkeys(lost, NodeState.SILENT)))
    said = f"{pod.name} cannot start on n2: {event}"
    remedy = "; if n1 is off, and not only cut off: kubectl taint node n1"
    remedy += " node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    assert found.shards == [said + remedy * told]


def test_a_pod_that_a_statefulset_cannot_make_is_said_with_the_controllers_words() -> None:
    world = lost_learner()
    made = world.server.children[path("StatefulSet", "demo", "tiny-us-east")]
    made["status"] = {"observedGeneration": 1, "replicas": 1}
    uid = made["metadata"]["uid"]
    said = EventFailure(
        uid=uid, namespace="demo", event="e", message="exceeded quota", at="2026-01-02T00:00:00Z"
    )
    world.server.cache.failed("ADDED", said)
    world.run()
    assert (
        "StatefulSet tiny-us-east cannot make a pod: exceeded quota"
        in (world.said("Degraded")["message"])
    )
    pod = world.server.children[path("Pod", "demo", "tiny-us-east-0")]
    pod["metadata"]["creationTimestamp"] = "2026-01-03T00:00:00Z"  # it could make one since
    memory = world.reconciler.memories[KEY]
    memory.written_at.clear()
    world.run()
    assert "exceeded quota" not in world.said("Degraded")["message"]
