"""A learner that does not work where it is gets another node or another start."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.observation import Observation, Replaced, Workload
from atoll_operator.kube.plan import restarts
from atoll_operator.kube.plan.replacements import (
    HUNG_SECONDS,
    SUSPECT_SECONDS,
    SUSPECTS_MAX,
    NodeState,
    Placement,
    exclusions,
)
from unit.kube.planner_side import NOW, planned, settled
from unit.kube.scenes import names, scene

HOSTS = "spec.learner.hosts=2"
OTHERS = "us-east-1 @n2; shard @n2; Lost us-east-0; Training us-east-1"
CRASH = f"us-east-0 @n1 crashes; {OTHERS}"
PAIR = "us-east-0/0 @n1 crashes exit=75; us-east-0/1 @n2 crashes"
OTHER_PAIR = "us-east-1/* @n3; shard; Training us-east-1; Lost us-east-0"
SPENT = {0: Replaced(count=20, uid="x", since=int(NOW) - 60, recent=20)}


def suspected(found: Observation) -> str:
    """The sets that are applied with nodes that they exclude."""
    sets = (each for each in planned(found).children.apply if each["kind"] == "StatefulSet")
    nodes = {e["metadata"]["name"]: objects.excluded_nodes(e["spec"]["template"]) for e in sets}
    return " ".join(f"{name}:{','.join(each)}" for name, each in nodes.items() if each)


def with_set(found: Observation, name: str = "tiny-us-east", **changes: Any) -> Observation:
    """What is observed of a set is different."""
    changed = replace(found.workloads[name], **changes)
    return replace(found, workloads={**found.workloads, name: changed})


def test_a_learner_that_crashes_on_one_node_is_made_again_on_another() -> None:
    found = scene(CRASH)
    assert suspected(found) == "tiny-us-east:n1"
    assert planned(found).delete == ()  # the template has to exclude the node first
    (gone,) = planned(settled(found)).delete
    assert (gone.name, gone.reason) == (
        "tiny-us-east-0", "it has crashed 5 times on n1 while other learners train",
    )  # fmt: skip
    assert gone.event is not None
    assert gone.event.reason == "LearnerRestarted"
    assert planned(settled(found)).children.apply == ()


def test_a_learner_that_crashed_on_a_node_that_is_lost_is_replaced_and_the_node_not_suspected() -> (
    None
):
    again = settled(scene(f"{CRASH}; n1 down"))
    assert names(planned(again).replace) == "us-east-0"
    assert planned(again).delete == ()
    assert all(not each.suspects for each in again.workloads.values())


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"us-east-0 @n1 crashes {more}; {OTHERS}"  # it is not the node's fault
            for more in (
                "restarts=4", "waits=", "waits=ImagePullBackOff", "exit=64", "exit=75", "exit=137",
                "going", "old",
            )
        ),
        "us-east-0 @n1 crashes; us-east-1 @n2; shard @n2; Lost us-east-0 us-east-1",
        "us-east-0 @n1 crashes; us-east-1 @n2; shard @n2",
        f"{CRASH}; n2 silent=13; n3 down; n0 n4 n5 gone",
    ],
)  # fmt: skip
def test_what_is_not_the_nodes_fault_or_has_no_other_node_is_left_to_the_kubelet(text: str) -> None:
    assert suspected(scene(text)) == ""


@pytest.mark.parametrize(
    ("pods", "moved"),
    [
        (PAIR, "tiny-us-east-0:n2"),
        ("us-east-0/0 @n1 crashes exit=75; us-east-0/1 @n2 crashes exit=75", ""),
    ],
)
def test_the_host_whose_own_process_crashes_is_moved_and_not_those_that_lost_it(
    pods: str, moved: str
) -> None:
    assert suspected(scene(f"{pods}; {OTHER_PAIR}", HOSTS)) == moved


def test_a_host_that_has_crashed_once_after_four_crashes_of_another_stays_where_it_is() -> None:
    text = "us-east-0/0 @n1 crashes; us-east-0/1 @n2 crashes exit=75; set us-east-0 off=n1"
    for crashes, moved in ((1, ""), (5, "us-east-0-0")):
        own = {"uid-us-east-0": crashes, "uid-us-east-0-1": 4}
        found = planned(scene(f"{text}; {OTHER_PAIR}", HOSTS, crashes=own)).delete
        assert names(found) == moved
        assert all("crashed 5 times" in each.reason for each in found)


@pytest.mark.parametrize(
    ("text", "changes", "name"),
    [(CRASH, (), "tiny-us-east"), (f"{PAIR}; {OTHER_PAIR}", (HOSTS,), "tiny-us-east-0")],
)
def test_a_slot_without_budget_is_named_instead(
    text: str, changes: tuple[str, ...], name: str
) -> None:
    spent = with_set(scene(text, *changes), name, replaced=SPENT)
    said = planned(spent).status
    assert suspected(spent) == ""
    assert said is not None
    words = next(c["message"] for c in said.status["conditions"] if c["type"] == "Degraded")
    assert "tiny-us-east-0 has used its spec.failure.maxReplacementsPerSlot of a day" in words


@pytest.mark.parametrize("change", [{"replaced": SPENT}, {"queued": True}])
def test_a_learner_stays_on_a_suspect_node_without_budget_or_when_kueue_queues_it(
    change: dict[str, Any],
) -> None:
    found = settled(scene(CRASH))
    assert "n1" in found.workloads["tiny-us-east"].suspects
    assert planned(found).delete
    assert planned(with_set(found, **change)).delete == ()


@pytest.mark.parametrize(("count", "blamed"), [(SUSPECTS_MAX - 1, True), (SUSPECTS_MAX, False)])
@pytest.mark.parametrize(
    ("text", "changes", "name"),
    [
        (CRASH, (), "tiny-us-east"),
        (f"{PAIR}; {OTHER_PAIR}", (HOSTS,), "tiny-us-east-1"),  # however many sets there are
    ],
)
def test_only_a_few_nodes_of_a_region_are_suspected_at_a_time(
    text: str, changes: tuple[str, ...], name: str, count: int, blamed: bool
) -> None:
    before = {f"o{n}": int(NOW) - 60 for n in range(count)}
    found = suspected(with_set(scene(text, *changes), name, suspects=before))
    own = [each for each in found.split() if "n1" in each or "n2" in each]
    assert len(own) == blamed


# ---------------------------------------------------------------- GPUs that are broken

GPU = "GPU 3 (GPU-5a1d) is broken: the driver reports XID 79"
BROKEN = f"us-east-0 @n1 exit=74 said={GPU.replace(' ', '_')}"


@pytest.mark.parametrize("state", ["unready", "runs unready", "waits=CrashLoopBackOff unready"])
@pytest.mark.parametrize("others", ["us-east-1 @n2; shard @n2", "us-east-1 @n2 pending; shard"])
def test_a_learner_whose_gpu_is_broken_moves_at_its_first_end_whether_or_not_others_train(
    state: str, others: str
) -> None:
    found = scene(f"{BROKEN} {state}; {others}; Lost us-east-0")
    assert suspected(found) == "tiny-us-east:n1"
    (gone,) = planned(settled(found)).delete
    assert (gone.name, gone.reason) == ("tiny-us-east-0", f"a GPU of n1 is broken: {GPU}")
    assert gone.event is not None
    assert gone.event.reason == "LearnerRestarted"
    assert gone.event.message == f"tiny-us-east-0 is made again: {gone.reason}"


def test_the_status_names_node_gpu_and_fault_until_the_learner_has_moved() -> None:
    said = planned(scene(f"{BROKEN} runs unready; us-east-1; shard; Training us-east-1")).status
    assert said is not None
    words = next(c["message"] for c in said.status["conditions"] if c["type"] == "Degraded")
    assert f"tiny-us-east-0 is started again on n1, last exit code 74: {GPU}" in words


def test_of_a_learner_of_several_hosts_the_one_with_the_broken_gpu_moves() -> None:
    text = f"us-east-0/0 @n1 crashes exit=75; us-east-0/1 @n2 exit=74 runs; {OTHER_PAIR}"
    assert suspected(scene(text, HOSTS)) == "tiny-us-east-0:n2"


def test_however_many_nodes_are_suspected_one_with_a_broken_gpu_is_left() -> None:
    before = {f"o{n}": int(NOW) - 60 for n in range(SUSPECTS_MAX)}
    found = with_set(scene(f"{BROKEN}; {OTHERS}"), suspects=before)
    assert "n1" in suspected(found)


@pytest.mark.parametrize("more", ["going", "evicted", "old", "pending"])
def test_a_pod_that_is_replaced_anyhow_is_not_moved_for_its_gpu(more: str) -> None:
    assert suspected(scene(f"{BROKEN} {more}; {OTHERS}")) == ""


def test_a_learner_with_a_broken_gpu_stays_without_another_node_or_budget() -> None:
    assert suspected(scene(f"{BROKEN}; {OTHERS}; n2 silent=13; n3 down; n0 n4 n5 gone")) == ""
    assert suspected(with_set(scene(f"{BROKEN}; {OTHERS}"), replaced=SPENT)) == ""


# ---------------------------------------------------------------- the end of a suspicion


def test_a_suspicion_ends_after_an_hour_or_with_its_node() -> None:
    def kept(age: float, **lost: NodeState) -> tuple[tuple[str, ...], str]:
        live = Workload(
            name="tiny-us-east", kind="StatefulSet", replicas=2, observed=True,
            template="t", excluded=("n1",), suspects={"n1": int(NOW)},
        )  # fmt: skip
        found = exclusions("tiny", {live.name: live}, Placement(lost=lost), [], now=NOW + age)
        return found.nodes[live.name], found.suspects[live.name]

    assert kept(SUSPECT_SECONDS - 1) == (("n1",), f'{{"n1": {int(NOW)}}}')
    assert kept(SUSPECT_SECONDS) == ((), "{}")
    assert kept(60.0, n1=NodeState.GONE) == ((), "{}")


def test_the_restarts_of_the_learners_own_container_are_read() -> None:
    states = [{"name": "istio", "restartCount": 9}, {"name": "learner", "restartCount": 3}]
    raw = {
        "metadata": {"name": "p", "uid": "u", "labels": {"atoll.dev/role": "learner"}},
        "spec": {"containers": [{"name": "istio"}, {"name": "learner"}]},
        "status": {"containerStatuses": states},
    }
    assert objects.pod(raw, {"learner": "learner"}).restarts == 3
    text = {"name": "s", "annotations": {Annotation.SUSPECTS: '{"n1": 7}'}}
    set_ = {"kind": "StatefulSet", "metadata": text, "spec": {"template": {"metadata": {}}}}
    assert objects.workload(set_).suspects == {"n1": 7}


# ---------------------------------------------------------------- learners that hang

HANGS = "us-east-0 us-east-1 runs; Stalled us-east-0; Training us-east-1"
SLOW = "us-east-0 us-east-1 runs; Stalled us-east-0:step_seconds=60; Training us-east-1"
KEY = ("tiny-us-east-0", restarts.HUNG)


@pytest.mark.parametrize(
    ("text", "seconds", "more", "restarted"),
    [
        (HANGS, HUNG_SECONDS - 1, {}, ""),
        (HANGS, HUNG_SECONDS, {}, "us-east-0"),
        (HANGS, HUNG_SECONDS, {"deleted_seconds": {KEY: 86_399.0}}, ""),
        (HANGS, HUNG_SECONDS, {"deleted_seconds": {KEY: 86_400.0}}, "us-east-0"),
        ("us-east-0 us-east-1 runs; Stalled us-east-0 us-east-1", 9999.0, {}, ""),  # all do
        (SLOW, 5999.0, {}, ""),
        (SLOW, 6000.0, {}, "us-east-0"),
    ],
)
def test_a_learner_that_hangs_is_restarted_once_a_day(
    text: str, seconds: float, more: dict[str, Any], restarted: str
) -> None:
    found = planned(scene(text, stalled_seconds={"uid-us-east-0": seconds}, **more)).delete
    assert names(found) == restarted
    assert {each.reason for each in found} <= {restarts.HUNG}


def test_every_host_of_a_learner_that_hangs_is_restarted_and_it_is_told_once() -> None:
    stalled = {"uid-us-east-0": HUNG_SECONDS}
    text = "us-east-0/* runs; us-east-1/*; Stalled us-east-0; Training us-east-1"
    found = planned(scene(text, HOSTS, stalled_seconds=stalled)).delete
    assert names(found) == "us-east-0-0 us-east-0-1"
    assert {each.reason for each in found} == {restarts.HUNG}
    assert [each.event is None for each in found] == [False, True]
