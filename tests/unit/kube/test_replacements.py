"""Which pods are made again elsewhere, and when the operator holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atoll_operator.api.parts import Failure
from atoll_operator.kube import objects
from atoll_operator.kube.names import QUEUE_LABEL, Annotation
from atoll_operator.kube.observation import Node, Pod, Replaced, Replacement, Workload
from atoll_operator.kube.plan.exclusions import exclusions, is_excluded, stranded
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.replacements import (
    Placement,
    PlacementInput,
    ToReplace,
    counts,
    decide,
    works_again,
)
from unit.kube.cluster_values import learner, node, shard

LOSS = 20


def choose(
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    *,
    dead: Sequence[str] = (),
    unseen: Sequence[str] = (),
    counts: dict[str, int] | None = None,
    released: bool = False,
    limit: int = 20,
    settling: frozenset[str] = frozenset(),
) -> Placement:
    regions = sorted({each.region for each in nodes})
    return decide(
        PlacementInput(
            pods=pods,
            nodes={each.name: each for each in nodes},
            dead=frozenset(dead),
            unseen=frozenset(unseen),
            counts=counts or {},
            failure=Failure(node_loss_seconds=LOSS, max_replacements_per_slot=limit),
            region_nodes={r: [n for n in nodes if n.region == r] for r in regions},
            released=released,
            settling=settling,
        )
    )


POD = learner("us-east-0", "n1")


def test_a_dead_session_on_a_silent_node_is_replaced() -> None:
    found = choose([POD], [node("n1", silent=30), node("n2")], dead=[POD.uid])
    assert [each.pod.name for each in found.replace] == ["tiny-us-east-0"]
    assert "silent" in found.replace[0].reason


def test_a_stale_lease_alone_never_triggers() -> None:
    assert not choose([POD], [node("n1", silent=300), node("n2")]).replace


def test_a_dead_session_alone_never_triggers() -> None:
    assert not choose([POD], [node("n1"), node("n2")], dead=[POD.uid]).replace


def test_with_the_syncer_unreachable_a_silent_node_is_not_enough() -> None:
    assert not choose([POD], [node("n1", silent=300), node("n2")], unseen=[POD.uid]).replace


def test_with_the_syncer_unreachable_a_node_that_stays_not_ready_is() -> None:
    for seconds, lost in ((0.0, False), (19.0, False), (20.0, True)):
        down = node("n1", ready=False, not_ready_seconds=seconds)
        assert bool(choose([POD], [down, node("n2")], unseen=[POD.uid]).replace) is lost
    declared = node("n1", out_of_service=True)
    assert choose([POD], [declared, node("n2")], unseen=[POD.uid]).replace
    assert choose([POD], [node("n2")], unseen=[POD.uid]).replace


def test_nodes_that_have_never_been_ready_make_no_storm() -> None:
    well = [node(f"w{i}") for i in range(4)]
    booting = [node(f"b{i}", ready=False, never_ready=True) for i in range(5)]
    pod = learner("us-east-0", "dead")
    dead = node("dead", silent=30)
    assert choose([pod], [*well, *booting, dead], dead=[pod.uid]).replace
    down = [replace(each, never_ready=False) for each in booting]
    assert choose([pod], [*well, *down, dead], dead=[pod.uid]).held


def test_pods_of_a_deleted_node_are_replaced() -> None:
    assert choose([POD], [node("n2")], dead=[POD.uid]).lost == {"n1": NodeState.GONE}
    assert choose([POD], [node("n2")], dead=[POD.uid]).replace


def test_a_shard_that_does_not_answer_is_treated_in_the_same_way() -> None:
    lost = replace(shard(0, "n1"), region="us-east")
    assert choose([lost], [node("n1", silent=30), node("n2")], dead=[lost.uid]).replace


STORM = [node(f"n{i}", silent=30) for i in range(4)] + [node("n4")]


def test_most_nodes_of_a_region_at_once_are_held() -> None:
    found = choose([learner("us-east-0", "n0")], STORM, dead=["uid-us-east-0"])
    assert not found.replace
    assert found.held[0].message.startswith("4 of 5 nodes of us-east")


def test_nodes_whose_renewal_is_overdue_count_for_a_storm() -> None:
    nodes = [node("n0", silent=22), *(node(f"n{i}", silent=12) for i in (1, 2)), node("n3")]
    assert choose([learner("us-east-0", "n0")], nodes, dead=["uid-us-east-0"]).held


def test_two_lost_nodes_are_no_storm_however_small_the_region() -> None:
    nodes = [node("n0", silent=30), node("n1", silent=30)]
    assert choose([learner("us-east-0", "n0")], nodes, dead=["uid-us-east-0"]).replace


def test_a_storm_is_let_through_by_annotation() -> None:
    pod = learner("us-east-0", "n0")
    assert choose([pod], STORM, dead=[pod.uid], released=True).replace


def test_a_node_declared_out_of_service_is_replaced_in_a_storm() -> None:
    pod = learner("us-east-0", "n0")
    nodes = [replace(STORM[0], out_of_service=True), *STORM[1:]]
    assert choose([pod], nodes, dead=[pod.uid]).replace


def test_nodes_that_return_one_by_one_are_waited_for() -> None:
    pod = learner("us-east-0", "n0")
    nodes = [node("n0", silent=30), *(node(f"n{i}") for i in range(1, 5))]
    assert not choose([pod], nodes, dead=[pod.uid], settling=frozenset({"us-east"})).replace
    assert choose([pod], nodes, dead=[pod.uid]).replace


def test_a_storm_in_one_region_holds_no_other() -> None:
    pods = [learner("us-east-0", "n0"), learner("eu-west-0", "e0")]
    nodes = [*STORM, node("e0", "eu-west", silent=30), node("e1", "eu-west")]
    found = choose(pods, nodes, dead=[each.uid for each in pods])
    assert [each.pod.region for each in found.replace] == ["eu-west"]


def test_a_slot_has_a_budget_of_replacements() -> None:
    found = choose(
        [POD], [node("n1", silent=30), node("n2")], dead=[POD.uid], counts={POD.name: 3}, limit=3
    )
    assert (found.replace, found.exhausted) == ((), (POD.name,))


def live(kind: str, excluded: tuple[str, ...], **more: Any) -> Workload:
    name = "tiny-us-east" if kind == "StatefulSet" else "tiny-syncer-0"
    fields: dict[str, Any] = {"replicas": 1, "observed": True, "applied": "", "template": "t"}
    return Workload(name=name, kind=kind, excluded=excluded, **(fields | more))


def test_the_budget_of_a_slot_is_one_of_a_day() -> None:
    spent = Replaced(count=30, uid="old", since=1000, recent=3)
    sets = {"tiny-us-east": live("StatefulSet", (), replaced={0: spent})}
    assert counts("tiny", [POD], sets, now=1000.0 + 86_399) == {POD.name: 3}
    assert counts("tiny", [POD], sets, now=1000.0 + 86_400) == {POD.name: 0}
    under_way = {0: replace(spent, uid=POD.uid)}
    sets = {"tiny-us-east": live("StatefulSet", (), replaced=under_way)}
    assert counts("tiny", [POD], sets, now=2000.0) == {POD.name: 2}


def test_a_replacement_is_noted_once_and_read_back() -> None:
    moved = Placement(replace=(ToReplace(pod=POD, node="n1", reason="lost"),))
    sets = {"tiny-us-east": live("StatefulSet", ())}
    text = exclusions("tiny", sets, moved, [], now=5000.0).replaced["tiny-us-east"]
    noted = objects.workload(
        {
            "kind": "StatefulSet",
            "metadata": {"name": "tiny-us-east", "annotations": {Annotation.REPLACED: text}},
            "spec": {"template": {"metadata": {}}},
        }
    )
    assert noted.replaced == {0: Replaced(count=1, uid=POD.uid, since=5000, recent=1)}
    assert exclusions("tiny", {noted.name: noted}, moved, [], now=9.0).replaced[noted.name] == text
    again = noted.replaced[0].once_more("next", now=6000.0)
    assert (again.count, again.since, again.recent) == (2, 5000, 2)
    late = again.once_more("later", now=5000.0 + 86_400)
    assert (late.count, late.since, late.recent) == (3, 5000 + 86_400, 1)


def test_a_pod_that_waits_and_excludes_a_node_that_its_template_allows_is_made_again() -> None:
    waiting = learner("us-east-0", "", phase="Pending", excluded=("n1",))
    assert stranded(waiting, live("StatefulSet", ()))
    assert not stranded(waiting, live("StatefulSet", ("n1",)))
    assert not stranded(waiting, live("StatefulSet", (), observed=False))
    assert not stranded(replace(waiting, node="n2"), live("StatefulSet", ()))


def test_a_shards_pod_that_waits_for_capacity_is_left_alone() -> None:
    waiting = shard(0, "", phase="Pending", excluded=("n1",))
    assert not stranded(waiting, live("Deployment", ()))


def excluded(set_: Workload, pods: list[Pod], **more: Any) -> tuple[str, ...]:
    placement = Placement(lost={"n2": NodeState.SILENT})
    found = exclusions("tiny", {set_.name: set_}, placement, pods, now=0.0, **more)
    return found.nodes[set_.name]


def test_a_deployment_forgets_nodes_that_are_well_only_while_its_pod_is_nowhere() -> None:
    shards = live("Deployment", ("n1", "n2"))
    assert excluded(shards, [shard(0, "n3")]) == ("n1", "n2")
    assert excluded(shards, [shard(0, "")]) == ("n2",)
    assert excluded(shards, [shard(0, "n3", phase="Failed")]) == ("n2",)
    assert excluded(live("StatefulSet", ("n1", "n2")), []) == ("n2",)


def test_before_the_nodes_are_listed_no_exclusion_changes() -> None:
    assert excluded(live("StatefulSet", ("n1",)), [], known=False) == ("n1",)


def test_a_replaced_shard_works_again_when_its_own_pod_is_ready() -> None:
    lost = Replacement(role="shard", name="tiny-syncer-0-x", old_uid="old", shard=0, lost_at=0.0)
    other = shard(1, "n2")
    assert not works_again(lost, [other, shard(0, "n1", uid="old")], frozenset())
    assert not works_again(lost, [other], frozenset())
    assert not works_again(lost, [other, shard(0, "n3", ready=False)], frozenset())
    assert works_again(lost, [replace(other, ready=False), shard(0, "n3")], frozenset())


def test_what_kueue_queues_excludes_no_node_and_waits_until_the_scheduler_keeps_off_it() -> None:
    move = ToReplace(pod=POD, node="n1", reason="lost")
    queued, free = live("StatefulSet", (), queued=True), live("StatefulSet", ())
    moved = Placement(replace=(move,), lost={"n1": NodeState.SILENT})
    assert exclusions("tiny", {queued.name: queued}, moved, [POD], now=1.0).nodes == {
        queued.name: ()
    }
    assert exclusions("tiny", {queued.name: queued}, moved, [POD], now=1.0).ended == {
        queued.name: ""
    }
    gone = replace(move, pod=replace(POD, phase="Failed", terminating=True))
    for live_set, text in ((queued, POD.uid), (free, "")):
        ended = replace(moved, replace=(gone,))
        found = exclusions("tiny", {live_set.name: live_set}, ended, [gone.pod], now=1.0)
        assert found.ended == {live_set.name: text}
    assert not is_excluded(move, queued, {"n1": NodeState.SILENT})
    assert is_excluded(move, queued, {"n1": NodeState.NOT_READY})
    assert not is_excluded(move, free, {"n1": NodeState.NOT_READY})
    raw = {"name": "s", "labels": {QUEUE_LABEL: "train"}}
    spec: dict[str, Any] = {"template": {"metadata": {}}}
    assert objects.workload({"kind": "StatefulSet", "metadata": raw, "spec": spec}).queued
