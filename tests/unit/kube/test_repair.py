"""What a pass does about lost nodes and their pods: retire, delete, name the successor."""

import pytest

from atoll_operator.kube import reconcile
from atoll_operator.kube.edges.api import LEASES, NODES, ApiError
from atoll_operator.kube.plan.planner import AGAIN_SECONDS
from atoll_protos.names import Label
from unit.kube.world import World, lost_learner

pytestmark = pytest.mark.usefixtures("still")


@pytest.fixture
def world() -> World:
    return lost_learner()


def test_a_lost_node_is_excluded_and_its_owner_retired_before_the_delete(world: World) -> None:
    first, second = world.run(), world.run()
    assert "apply StatefulSet tiny-us-east" in first
    assert not [each for each in first if each.startswith("delete")]
    order = [each for each in second if each.startswith(("owner", "delete", "event NodeLost"))]
    assert order == ["owner us-east-0 none 0", "delete tiny-us-east-0 at once", "event NodeLost"]


def test_the_replacement_is_named_owner_after_a_fresh_look_at_it(world: World) -> None:
    world.runs()
    index = {Label.REGION: "us-east", "apps.kubernetes.io/pod-index": "0"}
    world.server.add_pod("tiny-us-east-0", "learner", "n3", **index)
    world.live("Pod", "tiny-us-east-0")["metadata"]["uid"] = "new"
    world.registrar.slots[0].owner_generation = 1
    assert "owner us-east-0 new 1" in world.run()


def test_what_a_finalizer_holds_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(where: str, uid: str, *, at_once: bool = False) -> bool:
        world.server.log.append(f"delete {where.rpartition('/')[2]}")
        world.server.children[where]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return True

    monkeypatch.setattr(world.server, "delete", held)
    world.run()
    for events in (1, 0):
        log = world.run()
        assert "delete tiny-us-east-0" in log
        assert log.count("event NodeLost") == events
        assert world.metric("atoll_operator_node_replacements_total", role="learner") == 1
        world.memory.deleted_at.clear()  # a minute has passed


def test_a_pod_that_a_shard_refused_for_good_is_deleted_with_grace(world: World) -> None:
    world.see_nodes(n1="True")
    ended = {"terminated": {"exitCode": 77}}
    world.live("Pod", "tiny-us-east-0")["status"]["containerStatuses"] = [{"state": ended}]
    assert "delete tiny-us-east-0" in world.run()


def test_jobs_whose_replacements_are_held_are_counted(world: World) -> None:
    assert world.metric("atoll_operator_jobs_held") == 0
    world.see_nodes("us-east", n1="False", n2="False", n3="False")
    world.runs()  # the cache of these tests has the status from the next pass on
    assert world.said("Degraded")["reason"] == "NodeLossHeld"
    assert world.metric("atoll_operator_jobs_held") == 1
    world.server.job = None
    world.run()
    assert world.metric("atoll_operator_jobs_held") == 0


def test_a_node_that_renews_its_lease_at_the_last_moment_keeps_its_pod(world: World) -> None:
    world.see_nodes(n1="True")
    spec = {"renewTime": "10:00", "leaseDurationSeconds": 40}
    world.nodes.take("leases", "ADDED", {"metadata": {"name": "n1"}, "spec": spec})
    world.nodes.leases.leases["n1"].changed_at -= 60
    world.nodes.leases.settled_at -= 60
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:01"}}
    assert not [each for each in world.runs() if each.startswith(("owner", "delete"))]
    world.server.children[f"{LEASES}/n1"] = {"spec": {"renewTime": "10:00"}}
    assert "delete tiny-us-east-0 at once" in world.run()


def test_a_refused_word_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(address: str, slot: str, uid: str, word: int, credentials: object) -> int:
        return word + 5

    monkeypatch.setattr(world.shards, "set_owner", refuse)
    assert not [each for each in world.runs() if each.startswith("delete")]
    assert world.again == AGAIN_SECONDS


def test_while_nodes_cannot_be_watched_no_pod_is_replaced(world: World) -> None:
    world.nodes.sights[NODES].fails("403: nodes is forbidden", 0.0)
    assert not [each for each in world.runs() if each.startswith(("owner", "delete"))]
    world.nodes.sights[NODES].works(1.0)
    assert "delete tiny-us-east-0 at once" in world.runs()


def test_answers_from_before_the_last_effects_are_not_judged(world: World) -> None:
    acted = world.memory.acted_at
    world.shards.asked = False
    assert world.run() == []
    assert world.again == reconcile.UNASKED_SECONDS
    assert world.memory.acted_at == acted
    world.shards.asked = True
    assert world.run() != []
    assert world.memory.acted_at > acted


def test_a_delete_that_is_refused_is_said_and_stops_no_other(world: World) -> None:
    world.run()
    world.server.raises["delete"] = ApiError(403, "denied by policy keep")
    world.runs()
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert "Pod tiny-us-east-0 is not deleted: denied by policy keep" in accepted["message"]
    world.server.raises.clear()
    world.memory.deleted_at.clear()  # a minute later
    assert "delete tiny-us-east-0 at once" in world.runs()
    assert world.condition("Accepted") == "True"
