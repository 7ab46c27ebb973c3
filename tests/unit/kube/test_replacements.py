"""Which pods are made again elsewhere, and when the operator holds."""

import json
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.names import QUEUE_LABEL, Annotation
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.observation import (
    Observation,
    Pod,
    Replaced,
    Replacement,
    Workload,
    with_hosts,
)
from atoll_operator.kube.plan import planner
from atoll_operator.kube.plan.replacements import (
    NodeState,
    Placement,
    ToReplace,
    counts,
    exclusions,
    is_excluded,
    stranded,
    works_again,
)
from atoll_operator.kube.plan.situation import situation_of
from unit.kube.cluster_values import SETTINGS, hosts, learner, shard
from unit.kube.planner_side import NOW, planned, raw, settled
from unit.kube.scenes import decided, names, scene

POD = learner("us-east-0", "n1")
HOSTS = "spec.learner.hosts=2"
LIMIT = "spec.failure.maxReplacementsPerSlot=3"


def placed(found: Observation) -> Placement:
    assert found.job is not None
    return situation_of(found, found.job, SETTINGS, NOW).placement


def with_set(found: Observation, name: str, **changes: Any) -> Observation:
    """What is observed of a set is different."""
    changed = replace(found.workloads[name], **changes)
    return replace(found, workloads={**found.workloads, name: changed})


def spent(*counts: int) -> dict[int, Replaced]:
    """What a set notes of pods that have been replaced so often today."""
    return {
        index: Replaced(count=n, uid="old", since=int(NOW) - 60, recent=n)
        for index, n in enumerate(counts)
    }


LOST, UNSEEN = "us-east-0 @n1; Lost us-east-0", "us-east-0 @n1"
STORM = "n0 n1 n2 n3 silent=30"


@pytest.mark.parametrize(
    ("text", "more", "replaced"),
    [
        (f"{LOST}; n1 silent=30", {}, True),
        (f"{LOST}; n1 gone", {}, True),
        ("us-east-0 @n1; Training us-east-0; n1 silent=300", {}, False),  # never a Lease alone
        (LOST, {}, False),  # nor a dead session alone
        ("shard @n1; n1 silent=30", {"silent_seconds": {0: 60.0}}, True),
        (f"{UNSEEN}; n1 silent=300", {}, False),  # with the syncer unreachable
        (f"{UNSEEN}; n1 down for=19", {}, False),
        (f"{UNSEEN}; n1 down for=20", {}, True),
        (f"{UNSEEN}; n1 out", {}, True),
        (f"{UNSEEN}; n1 gone", {}, True),
        (f"{LOST}; {STORM}", {}, False),
        (f"{LOST}; n0 n2 n3 n4 silent=30; n1 out", {}, True),
        (f"{LOST}; n1 silent=22; n2 n3 n4 silent=12", {}, False),  # overdue: they count for a storm
        (f"{LOST}; n0 n1 silent=30", {}, True),  # two nodes make none
        (f"{LOST}; n1 silent=30; n2 n3 n4 n5 booting", {}, True),
        (f"{LOST}; n1 silent=30; n2 n3 n4 n5 down", {}, False),
        (f"{LOST}; n1 silent=30", {"storm_seconds": {"us-east": 19.0}}, False),  # one by one
    ],
)
def test_a_pod_is_replaced_when_session_and_node_are_lost_and_nothing_holds_it(
    text: str, more: dict[str, Any], replaced: bool
) -> None:
    assert len(placed(scene(text, **more)).replace) == replaced


def test_the_annotation_releases_a_storm() -> None:
    released = raw(annotations={Annotation.RELEASE_HOLD: ""})
    assert placed(replace(scene(f"{LOST}; {STORM}"), raw=released)).replace


@pytest.mark.parametrize(("used", "exhausted"), [(2, ()), (3, ("tiny-us-east-0",))])
def test_a_budget_that_is_used_up_is_named(used: int, exhausted: tuple[str, ...]) -> None:
    found = with_set(scene(f"{LOST}; n1 silent=30", LIMIT), "tiny-us-east", replaced=spent(used))
    assert placed(found).exhausted == exhausted
    assert len(placed(found).replace) == (not exhausted)
    pair = scene("us-east-0/0 @n1; us-east-0/1 @n2; Lost us-east-0; n1 n2 silent=30", HOSTS, LIMIT)
    of_hosts = placed(with_set(pair, "tiny-us-east-0", replaced=spent(0, used)))
    assert (of_hosts.exhausted, len(of_hosts.replace)) == (exhausted, 0 if exhausted else 2)


def test_reasons_storms_and_deleted_nodes_are_named() -> None:
    (gone,) = placed(scene(f"{LOST}; n1 silent=30")).replace
    assert gone.reason == "its node n1 is silent, and no shard hears the learner"
    (held,) = placed(scene(f"{LOST}; {STORM}")).held
    assert held.message.startswith("4 of 6 nodes of us-east")
    assert placed(scene(f"{LOST}; n1 gone")).lost == {"n1": NodeState.GONE}


def test_a_storm_in_one_region_holds_no_other() -> None:
    found = placed(
        scene(
            "us-east-0 @n0; eu-west-0 @n4; Lost us-east-0 eu-west-0; n0 n1 n2 n3 n4 silent=30;"
            " n4 n5 region=eu-west"
        )
    )
    assert names(found.replace) == "eu-west-0"


def live(kind: str, excluded: tuple[str, ...], **more: Any) -> Workload:
    name = "tiny-us-east" if kind == "StatefulSet" else "tiny-syncer-0"
    fields: dict[str, Any] = {"replicas": 1, "observed": True, "template": "t"}
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
    moved = Placement(replace=(ToReplace(pod=POD, reason="lost"),))
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
    move = ToReplace(pod=POD, reason="lost")
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


# ---------------------------------------------------------------- learners of several hosts

PAIR = hosts("us-east-0", "n1", "n2")
HEAD, FOLLOWER = PAIR
OF_PAIR = "us-east-0/0 @n1; us-east-0/1 @n2; us-east-1/* @n3; shard @n3; Training us-east-1"


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        (f"{OF_PAIR}; Training us-east-0; n2 silent=30", ""),
        *(
            (f"{OF_PAIR}; {state} us-east-0; n2 silent=30", "us-east-0-1")
            for state in ("Stalled", "Lost", "Joining")
        ),
        (f"{OF_PAIR}; Lost us-east-0; n1 n2 silent=30", "us-east-0-0 us-east-0-1"),
        # the session of the head lives
        (f"{OF_PAIR}; Stalled us-east-0; n1 n2 silent=30", "us-east-0-1"),
    ],
)
def test_a_host_on_a_lost_node_is_replaced_while_its_learner_does_not_train(
    text: str, replaced: str
) -> None:
    found = placed(scene(text, HOSTS)).replace
    assert names(found) == replaced
    own = [each.reason for each in found if not each.pod.is_head]
    assert set(own) <= {"its node n2 is silent, and its learner does not train"}


@pytest.mark.parametrize(
    ("change", "seconds", "count"),
    [
        ("spec.learner.hostsMin=1", 20, 1),
        ("spec.learner.hostsMin=1", 19, 0),
        ("spec.seed=0", 20, 0),
    ],
)
def test_a_host_that_its_learner_does_without_is_replaced_when_its_node_stays_away(
    change: str, seconds: int, count: int
) -> None:
    text = f"{OF_PAIR}; Training us-east-0; n2 down for={seconds}; set us-east-0 off=n2"
    assert len(decided(text, HOSTS, change).replace) == count


@pytest.mark.parametrize(("own", "count"), [("spec", 0), ("off=n2", 1)])
def test_a_host_waits_until_the_set_of_its_own_learner_excludes_the_node(
    own: str, count: int
) -> None:
    set_ = f"set us-east-0 {own}; " if count else ""
    text = f"{OF_PAIR}; Stalled us-east-0; n2 silent=30; {set_}set us-east-1 off=n2"
    assert len(decided(text, HOSTS).replace) == count


def test_a_learner_has_used_as_many_replacements_as_the_host_that_was_replaced_most() -> None:
    def used(noted: dict[int, Replaced]) -> int:
        live = replace(scene("", HOSTS).workloads["tiny-us-east-0"], replaced=noted)
        return counts("tiny", PAIR, {live.name: live}, now=NOW)["tiny-us-east-0"]

    assert used(spent(1, 1)) == 1  # they failed together, or each once
    assert used(spent(0, 3)) == 3
    under_way = Replaced(count=3, uid=FOLLOWER.uid, since=int(NOW) - 60, recent=3)
    assert used({1: under_way}) == 2


def test_a_replaced_host_works_again_when_its_learner_trains() -> None:
    lost = Replacement(role="learner", name=FOLLOWER.name, old_uid="old", lost_at=0.0)
    trains = with_hosts(frozenset({HEAD.uid}), PAIR)
    assert works_again(lost, PAIR, trains)
    assert not works_again(lost, PAIR, with_hosts(frozenset({"uid-us-east-1"}), PAIR))
    assert not works_again(replace(lost, old_uid=FOLLOWER.uid), PAIR, trains)
    waits = [HEAD, replace(FOLLOWER, ready=False)]  # its learner may train without it
    assert not works_again(lost, waits, trains)
    assert decided("us-east-0/*; Training us-east-0", HOSTS).training == trains


def test_a_host_that_is_lost_while_the_job_is_suspended_is_removed_and_moved_nowhere() -> None:
    for suspend, replicas, count, used in (("false", 2, 0, 1), ("true", 0, 1, 0)):
        found = scene(f"{OF_PAIR}; Left us-east-0; n2 silent=30", HOSTS, f"spec.suspend={suspend}")
        changes = {"replicas": replicas, "excluded": ("n2",), "replaced": spent(0, 20)}
        moved = planned(with_set(found, "tiny-us-east-0", **changes)).replace
        assert len(moved) == count
        assert all("is removed" in each.event.message for each in moved)
        fresh = with_set(found, "tiny-us-east-0", replicas=replicas)
        live = fresh.workloads["tiny-us-east-0"]
        noted = exclusions("tiny", {live.name: live}, placed(fresh), fresh.pods, now=NOW).replaced
        assert len(json.loads(noted[live.name] or "{}")) == used


def test_a_lost_host_moves_from_its_node_alone_and_its_head_keeps_the_slot() -> None:
    found = scene(f"{OF_PAIR}; Stalled us-east-0; n2 silent=30", HOSTS)
    first = planned(found)
    changed = [(each["kind"], each["metadata"]["name"]) for each in first.children.apply]
    assert changed == [("StatefulSet", "tiny-us-east-0")]  # its own set keeps off the node
    assert first.replace == ()
    second = planned(settled(found))
    (gone,) = second.replace
    assert (gone.pod.name, gone.pod.node, gone.retire_generation) == (
        "tiny-us-east-0-1",
        "n2",
        None,
    )
    assert (second.owners, second.delete, second.restart) == ((), (), ())


def test_both_lost_hosts_move_in_one_pass_and_only_the_head_loses_its_word() -> None:
    found = settled(scene(f"{OF_PAIR}; Lost us-east-0; n1 n2 silent=30", HOSTS))
    words = {each.pod.name: each.retire_generation for each in planned(found).replace}
    assert words == {"tiny-us-east-0-0": 0, "tiny-us-east-0-1": None}
    live = found.workloads["tiny-us-east-0"]
    assert {host: each.recent for host, each in live.replaced.items()} == {0: 1, 1: 1}
    assert counts("tiny", found.pods, found.workloads, NOW)["tiny-us-east-0"] == 0  # under way


def test_what_is_left_on_a_lost_node_of_a_learner_that_is_not_asked_for_is_removed_at_once() -> (
    None
):
    beyond = "us-east-7/0 @n1 going; us-east-7/1 @n2 going; syncer serves; n2 silent=30"
    found = decided(beyond, HOSTS, absent_seconds={"us-east-7": 60.0})
    (gone,) = found.replace
    assert gone.pod.name == "tiny-us-east-7-1"
    assert gone.event.message.startswith("tiny-us-east-7-1 is removed: its node n2 is silent")
    assert found.pause_seconds != planner.AGAIN_SECONDS
    wanted = scene(  # its set is about to be made, with the node excluded
        "us-east-1/0 @n1; us-east-1/1 @n2; syncer serves; n2 silent=30", HOSTS,
        absent_seconds={"us-east-1": 60.0},
    )  # fmt: skip
    assert planned(replace(wanted, children=(), workloads={})).replace == ()
