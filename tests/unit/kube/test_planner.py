"""The plan of one pass: pure, and right about children, owners, deletions and the next pass."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.status.reasons import NODE_LOSS_HELD
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.observed import objects
from atoll_operator.kube.observed.objects import rfc3339
from atoll_operator.kube.observed.observation import OLD_TEMPLATE, Observation
from atoll_operator.kube.plan import planner, restarts
from atoll_operator.kube.plan.actions import Changes, Plan
from atoll_operator.kube.plan.applied import NOT_WANTED
from atoll_operator.kube.plan.planner import is_managed_here
from atoll_protos.exits import ExitCode
from atoll_protos.names import Label
from unit.kube.cluster_values import learner, shard
from unit.kube.planner_side import NOW, planned, raw, seen, settled, workloads_of
from unit.kube.scenes import decided, names, scene


def test_a_learner_that_ends_for_good_is_named_with_its_last_words() -> None:
    said = decided("us-east-0 exit=64 said=no_data; us-east-1; Training us-east-1").status
    assert said is not None
    conditions = {each["type"]: each for each in said.status["conditions"]}
    assert conditions["Failed"]["status"] == "False"
    assert conditions["Degraded"]["reason"] == "PodsExited"
    assert "tiny-us-east-0 ended with exit code 64: no data" in conditions["Degraded"]["message"]


def test_the_same_observation_gives_the_same_plan_and_is_not_changed() -> None:
    text = "us-east-0 @n1 off=n3; us-east-1 @n2 old; shard @n2; Lost us-east-0; Training us-east-1"
    found = scene(f"{text}; n1 silent=30")
    before = copy.deepcopy(found)
    first, second = planned(found), planned(found)
    assert first == second
    assert first.children.apply
    assert found == before


def test_each_effect_makes_the_answers_of_the_shards_old() -> None:
    nothing, one = Plan(at=0.0, namespace="demo", job="tiny", marks=()), (object(),)
    assert not nothing.acts
    of_children: list[Any] = [{name: one} for name in ("apply", "prune")]
    acts: list[Any] = [{name: one} for name in ("replace", "delete", "owners", "restart")]
    acts += [{"children": Changes(**each)} for each in of_children]
    assert all(replace(nothing, **each).acts for each in acts)


OWNED = {"ownerReferences": [{"uid": "job-uid", "controller": True}], "uid": "old"}
ATTACHED = {"ownerReferences": [{"uid": "job-uid"}], "uid": "y"}  # a user's, to go with the job
EXPOSED = {"labels": {Label.JOB_UID: "job-uid"}, "uid": "z"}  # by kubectl, as a pod is labelled
ORPHAN = EXPOSED | {"annotations": {Annotation.APPLIED: "ours"}}
READS = [{"configMap": {"name": "read-by-a-pod"}}, {"emptyDir": {}}]


def test_what_the_job_no_longer_asks_for_is_deleted_unless_pods_or_data_depend_on_it() -> None:
    left = [
        {"kind": kind, "metadata": {"name": name, **metadata}}
        for kind, name, metadata in (
            ("StatefulSet", "tiny-ap-south", OWNED),
            ("ConfigMap", "read-by-a-pod", OWNED),
            ("ConfigMap", "read-by-none", OWNED),
            ("PersistentVolumeClaim", "tiny-syncer-9", OWNED),
            ("Service", "of-another", {"uid": "x"}),
            ("ConfigMap", "attached", ATTACHED),
            ("ServiceAccount", "used-by-a-pod", OWNED),
            ("ServiceAccount", "used-by-no-pod-yet", OWNED),
            ("Service", "exposed", EXPOSED),
            (
                "StatefulSet",
                "taken-from-us",
                EXPOSED | {"annotations": {Annotation.APPLIED: "ours"}},
            ),
        )
    ]
    spec = {"volumes": READS, "serviceAccountName": "used-by-a-pod"}
    left.append({"kind": "Pod", "metadata": {"name": "p", **OWNED}, "spec": spec})
    found = seen()
    own = {"spec": {"template": {"spec": {"serviceAccountName": "used-by-no-pod-yet"}}}}
    present = [
        {**each, **own} if objects.key_of(each) == ("StatefulSet", "tiny-us-east") else each
        for each in found.children
    ]
    pruned = planned(replace(found, children=(*present, *left))).children.prune
    assert [each.name for each in pruned] == ["tiny-ap-south", "read-by-none", "taken-from-us"]
    assert {each.reason for each in pruned} == {NOT_WANTED}


LOST = "us-east-0 @n1; shard @n2; n1 silent=30 renewed=10:00; Lost us-east-0"


def test_then_its_pod_is_to_be_replaced_and_its_owner_retired() -> None:
    (found,) = planned(settled(scene(LOST))).replace
    assert (found.pod.name, found.pod.node, found.retire_generation) == ("tiny-us-east-0", "n1", 0)
    assert (found.silent_renewal, found.silent_seconds) == ("10:00", 30.0)
    assert "silent" in found.reason
    assert planned(replace(settled(scene(LOST)), nodes=None)).replace == ()  # not listed yet


def test_a_pod_that_is_being_replaced_is_not_named_owner() -> None:
    assert planned(settled(scene(f"{LOST}:gen=3"))).owners == ()
    (word,) = decided("us-east-0 @n1; Lost us-east-0:gen=3").owners
    assert (word.slot, word.uid, word.generation) == ("us-east-0", "uid-us-east-0", 3)


def test_a_storm_is_held_and_remembered() -> None:
    def held(of: Observation) -> bool:
        status = planned(of).status
        assert status is not None
        conditions = {each["type"]: each["reason"] for each in status.status["conditions"]}
        told = any(each.reason == NODE_LOSS_HELD for each in status.events)
        assert told == (conditions["Degraded"] == NODE_LOSS_HELD)
        return told

    found = scene(f"{LOST}; n0 n2 n3 n4 silent=30")
    assert held(found)
    assert (planned(found).storms, planned(found).replace) == (("us-east",), ())
    released = raw(annotations={Annotation.RELEASE_HOLD: "true"})
    assert not held(replace(found, raw=released))


GONE = f"exit={int(ExitCode.SUPERSEDED)}"


@pytest.mark.parametrize(
    ("text", "deleted"),
    [
        ("us-east-0 pending off=n1", {"us-east-0": restarts.STRANDED}),
        (f"us-east-1 {GONE}", {"us-east-1": restarts.SUPERSEDED}),
        (f"us-east-1 {GONE} going", {}),
        # one that has joined since is left alone
        (f"us-east-1 {GONE} runs; Training us-east-1", {}),
        (f"us-east-1 {GONE} runs", {}),
        (f"us-east-1 {GONE} runs; Lost us-east-1", {"us-east-1": restarts.SUPERSEDED}),
    ],
)
def test_pods_that_cannot_go_on_are_deleted_each_with_its_reason(
    text: str, deleted: dict[str, str]
) -> None:
    assert {names([each]): each.reason for each in decided(text).delete} == deleted


def test_pods_of_an_old_template_are_restarted_only_while_the_registrar_answers() -> None:
    found = decided("us-east-0 old; Training us-east-0").restart
    assert [(each.name, each.reason) for each in found] == [("tiny-us-east-0", OLD_TEMPLATE)]
    assert decided("us-east-0 old").restart == ()
    assert decided("us-east-0; Training us-east-0").restart == ()


def test_no_pod_is_deleted_twice_for_the_same_cause_within_a_minute() -> None:
    text = f"us-east-0 old uid=next; us-east-1 old {GONE} uid=next; Training us-east-0:uid=next"
    first = decided(text)
    keys = [each.key for each in (*first.delete, *first.restart) if each.key]
    assert len(keys) == 2

    def again(seconds: float, more: str = "") -> Plan:
        past = {(place, cause + more): seconds for place, cause in keys}
        return decided(text, deleted_seconds=past)

    assert (again(59.0).delete, again(59.0).restart) == ((), ())
    for found in (again(61.0), again(5.0, " of an earlier edit")):
        assert names(found.delete) == "us-east-1"


def test_a_restart_that_kubectl_asked_for_reaches_the_learners() -> None:
    found = scene("us-east-0; us-east-1; Training us-east-0 us-east-1")
    assert not planned(found).restart
    live = copy.deepcopy(found.children)
    (east,) = (e for e in live if objects.key_of(e) == ("StatefulSet", "tiny-us-east"))
    east["spec"]["template"]["metadata"]["annotations"][objects.RESTARTED_AT] = "12:00"
    found = replace(found, children=live, workloads=workloads_of([*live]))
    assert names(planned(found).restart) == "us-east-0"


def test_a_manifest_that_cannot_be_read_gets_a_status_and_no_next_pass() -> None:
    found = planned(Observation(at=0.0, raw=raw(), error="spec.steps: must be at least 1"))
    assert found.status is not None
    assert found.pause_seconds is None
    assert (found.children.apply, found.children.prune, found.delete) == ((), (), ())


def test_a_job_of_another_manager_or_on_its_way_out_gets_an_empty_plan() -> None:
    foreign = raw()
    foreign["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    managed = [is_managed_here(each) for each in (raw(), raw(deletionTimestamp="now"), foreign)]
    assert managed == [True, False, False]
    assert planned(Observation(at=0.0, raw=foreign)).status is None


def finished(ttl: int | None, ended_seconds_ago: float, **more: Any) -> Observation:
    """A job whose Complete is written; the second of two passes, so that its status is settled."""
    changes = () if ttl is None else (f"spec.ttlSecondsAfterFinished={ttl}",)
    done = {"type": "Complete", "status": "True", "reason": "Trained", "message": "to step 600"}
    status = {"conditions": [done], "completionTime": rfc3339(NOW - ended_seconds_ago)}
    first = seen(*changes, raw=raw() | {"status": status}, **more)
    written = planned(first).status
    assert written is not None
    return replace(first, raw=raw() | {"status": written.status})


@pytest.mark.parametrize(
    ("ttl", "age", "pause"),
    [(None, 1000, planner.QUIET_SECONDS), (60, 10, 50.1), (60, 60, None), (0, 0, None)],
)
def test_a_finished_job_lives_for_its_time_to_live(
    ttl: int | None, age: float, pause: float | None
) -> None:
    found = planned(finished(ttl, age))
    assert found.pause_seconds == pause
    assert (found.expire is not None) == (pause is None)
    assert not any(replicas(found).values())


def test_a_finished_job_is_not_deleted_before_its_pods_and_its_last_status() -> None:
    with_pod = finished(0, 10, pods=(learner("us-east-0", "n1"),))
    assert planned(with_pod).expire is None
    evicted = finished(0, 10, pods=(shard(0, "n1", phase="Failed", ready=False),))
    assert planned(evicted).expire is not None
    unwritten = finished(0, 10)
    fresh = replace(unwritten, raw=raw(generation=2) | {"status": unwritten.raw["status"]})
    found = planned(fresh)
    assert found.status is not None
    assert found.expire is None
    assert found.pause_seconds == planner.POLL_SECONDS


def test_an_evicted_shard_pod_on_a_lost_node_moves_no_shard() -> None:
    found = decided("shard @n9 evicted uid=evicted; shard @n1", silent_seconds={0: 60.0})
    assert (found.replace, found.children.apply) == ((), ())


def replicas(found: Plan) -> dict[str, int]:
    specs = {each["metadata"]["name"]: each.get("spec", {}) for each in found.children.apply}
    return {name: spec["replicas"] for name, spec in specs.items() if "replicas" in spec}


def test_a_job_that_is_suspended_runs_nothing_and_is_looked_at_rarely() -> None:
    assert planned(seen()).pause_seconds == planner.POLL_SECONDS
    suspended = planned(seen("spec.suspend=true"))
    assert suspended.pause_seconds == planner.QUIET_SECONDS
    assert set(replicas(suspended).values()) == {0}


def test_a_job_that_ends_keeps_its_shards_until_its_end_is_written() -> None:
    found = decided("syncer complete", "spec.evaluator=null")
    assert replicas(found) == {"tiny-us-east": 0, "tiny-eu-west": 0}
