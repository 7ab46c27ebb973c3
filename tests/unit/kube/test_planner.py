"""The plan of one pass: pure, and right about children, owners, deletions and the next pass."""

import copy
from dataclasses import replace
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube import objects
from atoll_operator.kube.names import Annotation
from atoll_operator.kube.objects import rfc3339
from atoll_operator.kube.observation import Observation, Remembered
from atoll_operator.kube.plan import changes, pauses, planner, restarts, rollout
from atoll_operator.kube.plan.actions import Plan
from atoll_protos.exits import ExitCode
from atoll_protos.names import Label
from unit.kube.cluster_values import learner, node, reply, shard
from unit.kube.planner_side import NOW, answers, applied, lost, planned, raw, seen, template_of


def test_a_learner_that_ends_for_good_is_named_with_its_last_words() -> None:
    bad = learner("us-east-0", "n1", exit_code=64, exit_message="no data at /x")
    found = seen()
    pods = tuple(
        replace(each, template=template_of(found, each.region))
        for each in (bad, learner("us-east-1", "n2"))
    )
    registrar = reply(us_east_1="Training")
    said = planned(seen(pods=pods, remembered=answers(registrar))).status
    assert said is not None
    conditions = {each["type"]: each for each in said.status["conditions"]}
    assert conditions["Failed"]["status"] == "False"
    assert conditions["Degraded"]["reason"] == "PodsExited"
    assert "tiny-us-east-0 ended with exit code 64: no data" in conditions["Degraded"]["message"]


def test_the_same_observation_gives_the_same_plan_and_is_not_changed() -> None:
    lost = replace(learner("us-east-0", "n1"), excluded=("n3",))
    found = seen(
        pods=(lost, learner("us-east-1", "n2", template="old"), shard(0, "n2")),
        nodes={"n1": node("n1", silent=30), "n2": node("n2")},
        remembered=answers(reply(us_east_0="Lost", us_east_1="Training")),
    )
    before = copy.deepcopy(found)
    first, second = planned(found), planned(found)
    assert first == second
    assert first.apply
    assert found == before


def test_what_is_applied_already_is_not_applied_again() -> None:
    assert planned(seen()).apply == ()
    everything = planned(seen(children=[])).apply
    assert len(everything) == len(applied())


def test_what_the_job_no_longer_asks_for_is_deleted_unless_pods_or_data_depend_on_it() -> None:
    owner = {"ownerReferences": [{"uid": "job-uid", "controller": True}], "uid": "old"}
    attached = {"ownerReferences": [{"uid": "job-uid"}], "uid": "y"}  # a user's, to go with the job
    left = [
        {"kind": "StatefulSet", "metadata": {"name": "tiny-ap-south", **owner}},
        {"kind": "ConfigMap", "metadata": {"name": "read-by-a-pod", **owner}},
        {"kind": "ConfigMap", "metadata": {"name": "read-by-none", **owner}},
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "tiny-syncer-9", **owner}},
        {"kind": "Service", "metadata": {"name": "of-another", "uid": "x"}},
        {"kind": "ConfigMap", "metadata": {"name": "attached", **attached}},
        {"kind": "ServiceAccount", "metadata": {"name": "used-by-a-pod", **owner}},
        {
            "kind": "Pod",
            "metadata": {"name": "p", **owner},
            "spec": {
                "volumes": [{"configMap": {"name": "read-by-a-pod"}}, {"emptyDir": {}}],
                "serviceAccountName": "used-by-a-pod",
            },
        },
    ]
    found = seen()
    exposed = {"labels": {Label.JOB_UID: "job-uid"}, "uid": "z"}  # by kubectl, as a pod is labelled
    orphan = {**exposed, "annotations": {Annotation.APPLIED: "ours"}, "uid": "o"}
    left += [
        {"kind": "Service", "metadata": {"name": "exposed", **exposed}},
        {"kind": "StatefulSet", "metadata": {"name": "taken-from-us", **orphan}},
    ]
    east = next(
        each for each in found.children if each["metadata"]["name"] == "tiny-us-east"
        and each["kind"] == "StatefulSet"
    )  # fmt: skip
    own = {"spec": {"template": {"spec": {"serviceAccountName": "used-by-no-pod-yet"}}}}
    left.append({"kind": "ServiceAccount", "metadata": {"name": "used-by-no-pod-yet", **owner}})
    present = [{**each, **own} if each is east else each for each in found.children]
    pruned = planned(replace(found, children=(*present, *left))).prune
    assert [each.name for each in pruned] == ["tiny-ap-south", "read-by-none", "taken-from-us"]
    assert {each.reason for each in pruned} == {changes.NOT_WANTED}


def test_a_lost_node_is_excluded_first_and_its_pod_left_until_that_is_observed() -> None:
    first = planned(lost())
    (changed,) = [each for each in first.apply if each["kind"] == "StatefulSet"]
    assert objects.excluded_nodes(changed["spec"]["template"]) == ("n1",)
    assert first.replace == ()
    assert first.pause_seconds == pauses.AGAIN_SECONDS


def excluded_and_observed() -> Observation:
    first = lost()
    changed = {objects.key_of(each): each for each in planned(first).apply}
    live = [copy.deepcopy(changed.get(objects.key_of(each), each)) for each in first.children]
    for each in live:
        each["metadata"]["generation"], each["status"] = 2, {"observedGeneration": 2}
    return lost(children=live)


def test_then_its_pod_is_to_be_replaced_and_its_owner_retired() -> None:
    (found,) = planned(excluded_and_observed()).replace
    assert (found.pod.name, found.node) == ("tiny-us-east-0", "n1")
    assert found.silent_renewal == "10:00"
    assert found.retire_word == 0
    assert found.silent_seconds == 30.0
    assert "silent" in found.reason


def test_a_pod_that_is_being_replaced_is_not_named_owner() -> None:
    registrar = reply(us_east_0="Lost")
    registrar.slots[0].owner_word = 3
    found = replace(excluded_and_observed(), remembered=answers(registrar))
    assert planned(found).owners == ()
    well = seen(pods=(learner("us-east-0", "n1"),), remembered=answers(registrar))
    (word,) = planned(well).owners
    assert (word.slot, word.uid, word.word) == ("us-east-0", "uid-us-east-0", 3)


def test_before_the_nodes_are_listed_nothing_is_replaced() -> None:
    found = planned(replace(excluded_and_observed(), nodes=None))
    assert not found.replace
    assert not found.held


def test_a_storm_is_held_and_remembered() -> None:
    nodes = {f"n{i}": node(f"n{i}", silent=30) for i in range(4)}
    found = planned(replace(lost(), nodes=nodes))
    assert found.held
    assert found.storms == ("us-east",)
    assert not found.replace
    released = raw(annotations={Annotation.RELEASE_HOLD: "true"})
    assert not planned(replace(lost(raw=released), nodes=nodes)).held


def test_pods_that_cannot_go_on_are_deleted_each_with_its_reason() -> None:
    pods = (
        learner("us-east-0", "", phase="Pending", excluded=("n1",)),
        learner("us-east-1", "n2", exit_code=int(ExitCode.SUPERSEDED)),
        learner("eu-west-0", "n3", exit_code=int(ExitCode.SUPERSEDED), terminating=True),
    )
    found = planned(seen(pods=pods)).delete
    assert [(each.name, each.reason) for each in found] == [
        ("tiny-us-east-0", restarts.STRANDED),
        ("tiny-us-east-1", restarts.SUPERSEDED),
    ]


def test_a_learner_that_was_superseded_once_and_has_joined_since_is_left_alone() -> None:
    pods = (learner("us-east-0", "n1", exit_code=int(ExitCode.SUPERSEDED), runs=True),)
    assert not planned(seen(pods=pods, remembered=answers(reply(us_east_0="Training")))).delete
    assert not planned(seen(pods=pods)).delete
    assert planned(seen(pods=pods, remembered=answers(reply(us_east_0="Lost")))).delete


def test_pods_of_an_old_template_are_restarted_only_while_the_registrar_answers() -> None:
    pods = (learner("us-east-0", "n1", template="old"),)
    training = answers(reply(us_east_0="Training"))
    found = planned(seen(pods=pods, remembered=training)).restart
    assert [(each.name, each.reason) for each in found] == [
        ("tiny-us-east-0", rollout.OLD_TEMPLATE)
    ]
    assert planned(seen(pods=pods)).restart == ()
    new = (learner("us-east-0", "n1", template=template_of(seen(), "us-east")),)
    assert planned(seen(pods=new, remembered=training)).restart == ()


def test_an_edit_reaches_what_does_not_run_also_while_the_registrar_is_silent() -> None:
    pods = (
        learner("us-east-0", "n1", template="old", runs=True),
        learner("us-east-1", "n2", template="old", waiting="CrashLoopBackOff", exit_code=1),
        learner("eu-west-0", "", template="old", phase="Pending"),
    )
    found = planned(seen(pods=pods)).restart
    assert [each.name for each in found] == ["tiny-us-east-1", "tiny-eu-west-0"]


def test_a_learner_that_a_restored_shard_may_need_is_not_taken_for_an_idle_one() -> None:
    pods = (learner("us-east-0", "n1", template="old", runs=True),)
    shows = reply(us_east_0="Joining")
    assert planned(seen(pods=pods, remembered=answers(shows))).restart
    shows.state = pb.SHARD_RECOVERING
    assert not planned(seen(pods=pods, remembered=answers(shows))).restart


def test_no_pod_is_deleted_twice_for_the_same_cause_within_a_minute() -> None:
    pods = (
        learner("us-east-0", "n1", template="old"),
        learner("us-east-1", "n2", exit_code=int(ExitCode.SUPERSEDED), template="old"),
    )
    training = reply(us_east_0="Training")
    first = planned(seen(pods=pods, remembered=answers(training)))
    keys = [each.key for each in (*first.delete, *first.restart)]
    assert len(keys) == 2

    def again(seconds: float) -> Plan:
        past = {key: seconds for key in keys if key is not None}
        made_again = tuple(replace(each, uid="another") for each in pods)
        training.slots[0].uid = "another"
        remembered = answers(training, deleted_seconds=past)
        return planned(seen(pods=made_again, remembered=remembered))

    assert (again(59.0).delete, again(59.0).restart) == ((), ())
    assert [each.name for each in again(61.0).delete] == ["tiny-us-east-1"]
    edited = {
        (place, f"{cause} of an earlier edit"): 5.0
        for place, cause in (key for key in keys if key is not None)
    }
    other = planned(seen(pods=pods, remembered=answers(training, deleted_seconds=edited)))
    assert other.delete


def test_a_restart_that_kubectl_asked_for_reaches_the_learners() -> None:
    live = applied()
    (east,) = [each for each in live if each["metadata"]["name"] == "tiny-us-east"][-1:]
    assert east["kind"] == "StatefulSet"
    own = template_of(seen(), "us-east")
    pods = (learner("us-east-0", "n1", template=own), learner("us-east-1", "n2", template=own))
    training = answers(reply(us_east_0="Training", us_east_1="Training"))
    assert not planned(seen(pods=pods, children=live, remembered=training)).restart
    east["spec"]["template"]["metadata"]["annotations"][objects.RESTARTED_AT] = "12:00"
    (found,) = planned(seen(pods=pods, children=live, remembered=training)).restart
    assert found.name == "tiny-us-east-0"


def test_a_manifest_that_cannot_be_read_gets_a_status_and_no_next_pass() -> None:
    found = planned(Observation(at=0.0, raw=raw(), error="spec.steps: must be at least 1"))
    assert found.status is not None
    assert found.pause_seconds is None
    assert (found.apply, found.prune, found.delete) == ((), (), ())


def test_a_job_of_another_manager_or_on_its_way_out_gets_an_empty_plan() -> None:
    assert planner.is_managed_here(raw())
    assert not planner.is_managed_here(raw(deletionTimestamp="now"))
    foreign = raw()
    foreign["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert not planner.is_managed_here(foreign)
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
    [(None, 1000, pauses.QUIET_SECONDS), (60, 10, 50.1), (60, 60, None), (0, 0, None)],
)
def test_a_finished_job_lives_for_its_time_to_live(
    ttl: int | None, age: float, pause: float | None
) -> None:
    found = planned(finished(ttl, age))
    assert found.pause_seconds == pause
    assert (found.expire is not None) == (pause is None)
    assert all(each["spec"].get("replicas", 0) == 0 for each in found.apply if "spec" in each)


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
    assert found.pause_seconds == pauses.POLL_SECONDS


def test_an_evicted_shard_pod_on_a_lost_node_moves_no_shard() -> None:
    evicted = shard(0, "gone", phase="Failed", ready=False, uid="evicted")
    silent = Remembered(replies=(None,), silent_seconds={0: 60.0})
    found = planned(seen(pods=(evicted, shard(0, "n1")), remembered=silent))
    assert found.replace == ()
    assert found.apply == ()


def test_a_running_job_is_looked_at_every_second_and_a_suspended_one_rarely() -> None:
    assert planned(seen()).pause_seconds == pauses.POLL_SECONDS
    suspended = seen("spec.suspend=true")
    assert planned(suspended).pause_seconds == pauses.QUIET_SECONDS


def test_a_job_that_ends_keeps_its_shards_until_its_end_is_written() -> None:
    final = reply()
    final.state = pb.SHARD_COMPLETE
    changes = ("spec.evaluator=null",)
    found = planned(seen(*changes, remembered=answers(final)))
    replicas = {
        each["metadata"]["name"]: each["spec"]["replicas"]
        for each in found.apply
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    assert set(replicas) == {"tiny-us-east", "tiny-eu-west"}
    assert set(replicas.values()) == {0}


def test_the_phases_of_a_job_decide_what_runs() -> None:
    suspended = planned(seen("spec.suspend=true"))
    replicas = [each["spec"]["replicas"] for each in suspended.apply if "replicas" in each["spec"]]
    assert replicas
    assert set(replicas) == {0}


def by_an_earlier_version() -> list[dict[str, Any]]:
    """Live children whose selectors do not have the job's UID."""
    found = applied()
    for each in found:
        selector = each.get("spec", {}).get("selector")
        if selector:
            selector.get("matchLabels", selector).pop(Label.JOB_UID)
    return found


def test_services_and_budgets_go_by_the_uid_when_no_pod_is_left_without_it() -> None:
    old = learner("us-east-0", "n1", unlabelled=True)
    first = planned(seen(children=by_an_earlier_version(), pods=(old, learner("us-east-1", "n2"))))
    going_on: set[tuple[str, str]] = set()
    complete: set[tuple[str, str]] = set()
    for each in first.apply:
        selector = str(each.get("spec", {}).get("selector"))
        (complete if Label.JOB_UID in selector else going_on).add(objects.key_of(each))
    assert ("Service", "tiny-eu-west") in complete
    assert {("Service", "tiny-us-east"), ("PodDisruptionBudget", "tiny-learner")} <= going_on
    workloads = ("StatefulSet", "Deployment")  # their selectors cannot change
    assert not [name for kind, name in complete if kind in workloads]
    second = planned(seen(children=by_an_earlier_version(), pods=(learner("us-east-0", "n1"),)))
    name = ("Service", "tiny-us-east")
    service = next(each for each in second.apply if objects.key_of(each) == name)
    assert service["spec"]["selector"][Label.JOB_UID] == "job-uid"
