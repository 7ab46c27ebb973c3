"""What a pass does about lost nodes and their pods: retire, delete, name the successor."""

import pytest

from atoll_operator.kube import reconcile
from atoll_operator.kube.edges.api import (
    LEASES,
    NODES,
    ApiError,
    path,
)
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS
from atoll_protos.names import Label
from unit.kube.world import KEY, lost_learner

pytestmark = pytest.mark.usefixtures("still")

READY = {"type": "Ready", "status": "True"}


def test_a_lost_node_is_excluded_and_the_owner_retired_before_its_pod_is_deleted() -> None:
    world = lost_learner()
    first, second = world.run(), world.run()
    assert "apply StatefulSet tiny-us-east" in first
    assert not [each for each in first if each.startswith("delete")]
    order = [each for each in second if each.startswith(("owner", "delete", "event NodeLost"))]
    assert order == [
        "owner us-east-0 none 0", "delete tiny-us-east-0 at once", "event NodeLost",
    ]  # fmt: skip


def test_the_replacement_is_named_owner_after_a_fresh_look_at_it() -> None:
    world = lost_learner()
    world.run()
    world.run()
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "0"}
    world.server.add_pod("tiny-us-east-0", "learner", "n3", **index)
    world.server.children[path("Pod", "demo", "tiny-us-east-0")]["metadata"]["uid"] = "new"
    reply = world.shards.replies[0]
    assert reply is not None
    reply.slots[0].owner_word = 1
    assert "owner us-east-0 new 1" in world.run()


def test_a_pod_that_a_finalizer_holds_is_deleted_again_and_told_once() -> None:
    world = lost_learner()

    async def held(where: str, uid: str, *, at_once: bool = False) -> bool:
        world.server.log.append(f"delete {where.rpartition('/')[2]}")
        world.server.children[where]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return True

    world.server.delete = held  # type: ignore[method-assign]
    world.run()
    for events in (1, 0):
        log = world.run()
        assert "delete tiny-us-east-0" in log
        assert log.count("event NodeLost") == events
        assert world.metrics.replacements.labels("learner")._value.get() == 1
        world.reconciler.memories[KEY].deleted_at.clear()  # a minute has passed


def test_a_pod_that_a_shard_refused_for_good_is_deleted_with_grace() -> None:
    world = lost_learner()
    world.nodes.nodes.clear()
    for name in ("n1", "n2"):
        conditions = [{"type": "Ready", "status": "True"}]
        raw = {"metadata": {"name": name}, "status": {"conditions": conditions}}
        world.nodes.take(NODES, "ADDED", raw)
    pod = world.server.children[path("Pod", "demo", "tiny-us-east-0")]
    ended = {"terminated": {"exitCode": 77}}
    pod["status"]["containerStatuses"] = [{"state": ended}]
    assert "delete tiny-us-east-0" in world.run()


def test_jobs_whose_replacements_are_held_are_counted() -> None:
    world = lost_learner()
    assert world.metric("atoll_operator_jobs_held") == 0
    for name in ("n1", "n2", "n3"):
        conditions = [{"type": "Ready", "status": "False"}]
        raw = {
            "metadata": {"name": name, "labels": {"region": "us-east"}},
            "status": {"conditions": conditions},
        }
        world.nodes.take(NODES, "ADDED", raw)
    world.run()
    assert world.condition("NodeLossHeld") == "True"
    assert world.metric("atoll_operator_jobs_held") == 1
    world.server.job = None
    world.run()
    assert world.metric("atoll_operator_jobs_held") == 0


def test_a_node_that_renews_its_lease_at_the_last_moment_keeps_its_pod() -> None:
    world = lost_learner()
    for name in ("n1", "n2", "n3"):
        raw = {"metadata": {"name": name}, "status": {"conditions": [READY]}}
        world.nodes.take(NODES, "ADDED", raw)
    spec = {"renewTime": "10:00", "leaseDurationSeconds": 40}
    world.nodes.take("leases", "ADDED", {"metadata": {"name": "n1"}, "spec": spec})
    world.nodes.leases.leases["n1"].changed_at -= 60
    world.nodes.leases.settled_at -= 60
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:01"}}
    world.run()
    assert not [each for each in world.run() if each.startswith(("owner", "delete"))]
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:00"}}
    assert "delete tiny-us-east-0 at once" in world.run()


def test_a_word_that_the_registrar_refuses_deletes_nothing() -> None:
    world = lost_learner()
    world.run()

    async def refuse(
        address: str, slot: str, uid: str, word: int, credentials: object = None
    ) -> int:
        return word + 5

    world.shards.set_owner = refuse  # type: ignore[method-assign]
    assert not [each for each in world.run() if each.startswith("delete")]
    assert world.again == AGAIN_SECONDS


def test_while_nodes_cannot_be_watched_no_pod_is_replaced() -> None:
    world = lost_learner()
    world.nodes.sights[NODES].fails("403: nodes is forbidden", 0.0)
    world.run()
    assert not [each for each in world.run() if each.startswith(("owner", "delete"))]
    world.nodes.sights[NODES].works(1.0)
    world.run()
    assert "delete tiny-us-east-0 at once" in world.run()


def test_answers_from_before_the_last_effects_are_not_judged() -> None:
    world = lost_learner()
    memory = world.reconciler.memories[KEY]
    acted = memory.acted_at
    world.shards.asked = False
    assert world.run() == []
    assert world.again == reconcile.UNASKED_SECONDS
    assert memory.acted_at == acted
    world.shards.asked = True
    assert world.run() != []
    assert memory.acted_at > acted


def test_a_delete_that_is_refused_is_said_and_stops_no_other() -> None:
    world = lost_learner()
    world.run()

    async def refuse(where: str, uid: str, *, at_once: bool = False) -> bool:
        raise ApiError(403, "denied by policy keep")

    whole = world.server.delete
    world.server.delete = refuse  # type: ignore[method-assign]
    world.run()
    world.run()
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "Pod tiny-us-east-0 is not deleted: denied by policy keep" in accepted["message"]
    world.server.delete = whole  # type: ignore[method-assign]
    memory = world.reconciler.memories[KEY]
    memory.deleted_at.clear()  # a minute later
    assert "delete tiny-us-east-0 at once" in world.run()
    world.run()
    assert world.condition("Accepted") == "True"
