"""A learner that does not work where it is gets another node or another start."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube import objects, observation
from atoll_operator.kube.memory import Memory
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observation import Observation, Pod, Replaced, Workload
from atoll_operator.kube.plan import restarts
from atoll_operator.kube.plan.exclusions import SUSPECT_SECONDS, exclusions
from atoll_operator.kube.plan.nodes import NodeState
from atoll_operator.kube.plan.replacements import Placement
from atoll_operator.kube.plan.suspects import HUNG_SECONDS, SUSPECTS_MAX
from unit.kube.cluster_values import learner, node, reply, shard
from unit.kube.planner_side import NOW, answers, planned, seen, template_of

CRASHES: dict[str, Any] = {
    "waiting": "CrashLoopBackOff", "restarts": 5, "exit_code": 139, "ready": False,
}  # fmt: skip


def crash_loop(*others: Pod, **more: Any) -> Observation:
    """us-east-0 crashes on n1; us-east-1 trains on n2, and n3 is free."""
    fields = CRASHES | {"template": template_of(seen(), "us-east")} | more
    bad = learner("us-east-0", "n1", **fields)
    good = learner("us-east-1", "n2", template=template_of(seen(), "us-east"))
    training = answers(reply(us_east_0="Lost", us_east_1="Training"))
    return seen(pods=(bad, good, *others, shard(0, "n2")), remembered=training)


def suspected(found: Observation) -> tuple[str, ...]:
    return tuple(
        name
        for each in planned(found).apply
        if each["kind"] == "StatefulSet"
        for name in objects.excluded_nodes(each["spec"]["template"])
    )


def settled(found: Observation) -> Observation:
    """The next pass: what was planned has been applied, and its controllers have seen it."""
    changed = {objects.key_of(each): each for each in planned(found).apply}
    live = [copy.deepcopy(changed.get(objects.key_of(each), each)) for each in found.children]
    for each in live:
        each["metadata"] |= {"generation": 2}
        each["status"] = {"observedGeneration": 2}
    sets = [objects.workload(each) for each in live if "template" in each.get("spec", {})]
    return replace(found, children=tuple(live), workloads=observation.by_name(sets))


def test_a_learner_that_crashes_on_one_node_is_made_again_on_another() -> None:
    found = crash_loop()
    first = planned(found)
    assert suspected(found) == ("n1",)
    assert first.delete == ()  # the template has to exclude the node first
    (gone,) = planned(settled(found)).delete
    assert (gone.name, gone.reason) == (
        "tiny-us-east-0", "it has crashed 5 times on n1 while other learners train",
    )  # fmt: skip
    assert gone.event is not None
    assert gone.event.reason == "LearnerRestarted"
    assert planned(settled(found)).apply == ()


@pytest.mark.parametrize(
    "more",
    [
        {"restarts": 4},
        {"waiting": ""},
        {"waiting": "ImagePullBackOff"},
        {"exit_code": 64},
        {"exit_code": 75},
        {"exit_code": 137},
        {"terminating": True},
        {"template": "old"},
    ],
)
def test_what_is_not_the_nodes_fault_is_left_to_the_kubelet(more: dict[str, Any]) -> None:
    assert suspected(crash_loop(**more)) == ()


def test_while_nobody_else_trains_no_node_is_to_blame() -> None:
    nobody = crash_loop()
    for registrar in (reply(us_east_0="Lost", us_east_1="Lost"), None):
        remembered = replace(nobody.remembered, replies=(registrar,))
        assert suspected(replace(nobody, remembered=remembered)) == ()


def test_without_another_node_that_is_well_the_learner_stays() -> None:
    found = crash_loop()
    only = {"n1": node("n1"), "n2": node("n2", silent=13), "n3": node("n3", ready=False)}
    assert suspected(replace(found, nodes=only)) == ()


def test_a_slot_without_budget_is_named_instead() -> None:
    found = crash_loop()
    live = found.workloads["tiny-us-east"]
    spent = Replaced(count=20, uid="x", since=int(NOW) - 60, recent=20)
    sets = {**found.workloads, live.name: replace(live, replaced={0: spent})}
    said = planned(replace(found, workloads=sets))
    assert suspected(replace(found, workloads=sets)) == ()
    assert said.status is not None
    text = next(c["message"] for c in said.status.status["conditions"] if c["type"] == "Degraded")
    assert "tiny-us-east-0 has used its spec.failure.maxReplacementsPerSlot of a day" in text


def test_a_node_that_another_learner_made_suspect_gives_no_further_budget() -> None:
    found = settled(crash_loop())
    live = found.workloads["tiny-us-east"]
    assert "n1" in live.suspects
    assert planned(found).delete
    spent = Replaced(count=20, uid="x", since=int(NOW) - 60, recent=20)
    sets = {**found.workloads, live.name: replace(live, replaced={0: spent})}
    assert planned(replace(found, workloads=sets)).delete == ()


def test_only_a_few_nodes_of_a_region_are_suspected_at_a_time() -> None:
    found = crash_loop()
    live = found.workloads["tiny-us-east"]
    for count, blamed in ((SUSPECTS_MAX - 1, True), (SUSPECTS_MAX, False)):
        before = {f"o{n}": int(NOW) - 60 for n in range(count)}
        sets = {**found.workloads, live.name: replace(live, suspects=before)}
        assert ("n1" in suspected(replace(found, workloads=sets))) is blamed


def test_a_suspicion_ends_after_an_hour_or_with_its_node() -> None:
    def kept(age: float, **lost: NodeState) -> tuple[tuple[str, ...], str]:
        live = Workload(
            name="tiny-us-east", kind="StatefulSet", replicas=2, observed=True, applied="",
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


def hangs(seconds: float, **more: Any) -> tuple[str, ...]:
    """Reasons for which pods are deleted when us-east-0 has been Stalled for so long."""
    registrar = more.pop("registrar", reply(us_east_0="Stalled", us_east_1="Training"))
    own = template_of(seen(), "us-east")
    pods = tuple(learner(f"us-east-{n}", f"n{n + 1}", template=own, runs=True) for n in (0, 1))
    remembered = answers(registrar, stalled_seconds={"uid-us-east-0": seconds}, **more)
    found = planned(seen(pods=pods, remembered=remembered)).delete
    assert {each.name for each in found} <= {"tiny-us-east-0"}
    return tuple(each.reason for each in found)


def test_a_learner_that_hangs_is_restarted_once_a_day() -> None:
    assert hangs(HUNG_SECONDS - 1) == ()
    assert hangs(HUNG_SECONDS) == (restarts.HUNG,)
    key = ("tiny-us-east-0", restarts.HUNG)
    assert hangs(HUNG_SECONDS, deleted_seconds={key: 86_399.0}) == ()
    assert hangs(HUNG_SECONDS, deleted_seconds={key: 86_400.0}) == (restarts.HUNG,)


def test_learners_that_all_stand_still_are_not_restarted() -> None:
    assert hangs(9999.0, registrar=reply(us_east_0="Stalled", us_east_1="Stalled")) == ()


def test_long_steps_are_waited_for() -> None:
    slow = reply(us_east_0="Stalled", us_east_1="Training")
    slow.slots[0].step_seconds = 60.0
    assert hangs(5999.0, registrar=slow) == ()
    assert hangs(6000.0, registrar=slow) == (restarts.HUNG,)


def test_a_stall_is_timed_without_a_break() -> None:
    memory = Memory(uid="u")
    stalled, trains = reply(us_east_0="Stalled"), reply(us_east_0="Training")

    def seconds(registrar: Any, now: float) -> dict[str, float]:
        memory.take([registrar], now, "then")
        return dict(memory.read(1, [], now).stalled_seconds)

    assert seconds(stalled, 100.0) == {"uid-us-east-0": 0.0}
    assert seconds(stalled, 160.0) == {"uid-us-east-0": 60.0}
    assert seconds(trains, 161.0) == {}
    assert seconds(stalled, 162.0) == {"uid-us-east-0": 0.0}


def test_a_learner_that_kueue_queues_stays_where_it_crashes() -> None:
    found = settled(crash_loop())
    assert planned(found).delete
    live = found.workloads["tiny-us-east"]
    queued = {**found.workloads, live.name: replace(live, queued=True)}
    assert planned(replace(found, workloads=queued)).delete == ()
