"""A pass reverts what others change in a job's children, and leaves alone what is not the job's."""

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.spec import KIND
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.memory import REVERT_FORGET_SECONDS, REVERT_SECONDS
from atoll_operator.kube.plan import changes, pods
from atoll_operator.kube.plan.drift import drift
from atoll_operator.kube.plan.pauses import AGAIN_SECONDS, POLL_SECONDS
from atoll_protos.names import Label
from unit.kube.cluster_values import SETTINGS
from unit.kube.world import KEY, World

SCALED = path("StatefulSet", "demo", "tiny-us-east")


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


def quiet() -> World:
    """A job whose children are there and whose status is written."""
    world = World()
    world.run()
    assert world.run() == []
    return world


def later(world: World, seconds: float) -> None:
    """Everything that is remembered of reverts and refusals lies this much further back."""
    memory = world.reconciler.memories[KEY]
    for key, each in memory.reverted.items():
        memory.reverted[key] = replace(each, at=each.at - seconds)
    for of_job in world.reconciler.writer.recorder.told.values():
        for told in of_job.values():
            told.written_at -= seconds
    for key, refused in memory.refused.items():
        memory.refused[key] = replace(refused, again_at=0.0)


@pytest.mark.parametrize(
    ("kind", "name", "path_of", "value"),
    [
        ("StatefulSet", "tiny-us-east", "spec.replicas", 0),
        ("Deployment", "tiny-syncer-0", "spec.replicas", 3),
        ("Service", "tiny-us-east", "spec.selector", {"app": "mine"}),
        ("PodDisruptionBudget", "tiny-syncer", "spec.maxUnavailable", 0),
        ("ServiceAccount", "tiny-learner", "automountServiceAccountToken", True),
        ("Service", "tiny-syncer-0", "metadata.ownerReferences", []),
    ],
)
def test_a_change_of_a_child_is_reverted_in_the_next_pass_and_told(
    kind: str, name: str, path_of: str, value: Any
) -> None:
    world = quiet()
    live = world.server.children[path(kind, "demo", name)]
    before = copy.deepcopy(live)
    *above, last = path_of.split(".")
    place = live
    for each in above:
        place = place[each]
    place[last] = value
    assert world.run() == [f"apply {kind} {name}", "event ChildReverted"]
    assert world.server.children[path(kind, "demo", name)] == before
    assert world.run() == []


def test_labels_and_annotations_that_others_add_to_a_child_stay() -> None:
    world = quiet()
    for live in world.server.children.values():
        live["metadata"]["labels"]["argocd.argoproj.io/instance"] = "app"
        live["metadata"]["annotations"]["sidecar.istio.io/inject"] = "true"
    assert world.run() == []


def test_two_controllers_that_want_different_things_do_not_write_without_end() -> None:
    world = quiet()
    wrote = []
    for _ in range(20):  # passes of the same moment, each after a write of an autoscaler
        world.server.children[SCALED]["spec"]["replicas"] = 7
        wrote += world.run()
    assert wrote.count("apply StatefulSet tiny-us-east") == 1
    assert wrote.count("event ChildReverted") == 1
    assert world.again is not None
    assert world.again <= POLL_SECONDS
    later(world, REVERT_SECONDS[0] + 0.1)
    assert world.run() == ["apply StatefulSet tiny-us-east"]
    for _ in range(20):
        world.server.children[SCALED]["spec"]["replicas"] = 7
        later(world, REVERT_SECONDS[1])
        assert world.run() == ["apply StatefulSet tiny-us-east"]
    world.server.children[SCALED]["spec"]["replicas"] = 7
    later(world, REVERT_FORGET_SECONDS)
    assert "event ChildReverted" in world.run()


def test_an_edit_of_the_job_reaches_a_child_that_is_not_to_be_reverted_yet() -> None:
    world = quiet()
    for _ in range(2):
        world.server.children[SCALED]["spec"]["replicas"] = 7
        world.run()
    assert world.server.job is not None
    world.server.job["spec"]["regions"][0]["learners"] = 3
    assert "apply StatefulSet tiny-us-east" in world.run()
    assert world.server.children[SCALED]["spec"]["replicas"] == 3


def test_a_value_that_the_api_server_writes_in_its_own_way_is_applied_once() -> None:
    world = World()
    whole = world.server.apply

    async def normalise(child: Mapping[str, Any]) -> Any:
        answer = await whole(child)
        if child["kind"] == "StatefulSet":
            stored = world.server.children[path("StatefulSet", "demo", child["metadata"]["name"])]
            for found in (answer, stored):
                found["spec"]["serviceName"] = "AS-THE-SERVER-LIKES"
        return answer

    world.server.apply = normalise  # type: ignore[method-assign]
    world.run()
    assert world.run() == []
    world.server.children[SCALED]["spec"]["serviceName"] = "edited"
    assert "apply StatefulSet tiny-us-east" in world.run()
    assert world.run() == []


def test_a_suspended_job_s_children_are_reverted_too() -> None:
    world = quiet()
    assert world.server.job is not None
    world.server.job["spec"]["suspend"] = True
    world.run()
    world.run()
    world.server.children[SCALED]["spec"]["replicas"] = 2
    assert "apply StatefulSet tiny-us-east" in world.run()
    assert world.server.children[SCALED]["spec"]["replicas"] == 0


# ---------------------------------------------------------------- what is not the job's


def foreign(kind: str, name: str, **metadata: Any) -> tuple[World, str, dict[str, Any]]:
    """A new job in whose way an object is; and that object."""
    world = World()
    where = path(kind, "demo", name)
    about = {"name": name, "namespace": "demo", "uid": "theirs", **metadata}
    made = world.server.children[where] = {"metadata": about, "spec": {}}
    return world, where, copy.deepcopy(made)


OF_A_B = {"ownerReferences": [{"kind": KIND, "name": "tiny-us", "uid": "o", "controller": True}]}
OF_FORMER = {
    "labels": {Label.JOB: "tiny", Label.JOB_UID: "former"},
    "ownerReferences": [{"kind": KIND, "name": "tiny", "uid": "former", "controller": True}],
}
ORPHAN = {"labels": OF_FORMER["labels"]}


@pytest.mark.parametrize(
    ("kind", "name", "metadata", "words"),
    [
        ("Service", "tiny-us-east", {}, "was not made by this job"),
        ("Service", "tiny-us-east", {"labels": {Label.JOB: "tiny"}}, "not taken over"),
        ("StatefulSet", "tiny-us-east", OF_A_B, f"belongs to {KIND} tiny-us"),
        ("ServiceAccount", "tiny-learner", {}, "serviceAccountName"),
        ("Deployment", "tiny-syncer-0", OF_FORMER, "a former job of this name"),
        ("Deployment", "tiny-syncer-0", ORPHAN, "kubectl delete statefulset,deployment,"),
    ],
)
def test_an_object_of_another_is_never_written_and_told_with_its_owner(
    kind: str, name: str, metadata: dict[str, Any], words: str
) -> None:
    world, where, before = foreign(kind, name, **metadata)
    if kind in ("StatefulSet", "Deployment"):
        template: dict[str, Any] = {"metadata": {}, "spec": {}}
        world.server.children[where]["spec"] = {"replicas": 1, "template": template}
        before = copy.deepcopy(world.server.children[where])
    wrote = world.run() + world.run()
    assert world.server.children[where] == before
    assert f"apply {kind} {name}" not in wrote
    assert not [each for each in wrote if each.startswith("delete")]
    assert "apply StatefulSet tiny-eu-west" in wrote  # the others are made
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert f"{kind} {name}: " in accepted["message"]
    assert words in accepted["message"]
    assert world.run() == []


def test_what_is_in_the_way_is_replaced_by_the_job_s_own_when_it_has_gone() -> None:
    world, where, _ = foreign("Service", "tiny-us-east")
    world.run()
    world.run()
    del world.server.children[where]
    later(world, 60.0)
    assert "apply Service tiny-us-east" in world.run()
    world.run()
    assert world.condition("Accepted") == "True"
    assert world.run() == []


def test_a_foreign_object_that_the_job_does_not_ask_for_is_never_deleted() -> None:
    labels = {Label.JOB: "tiny", "app": "mine"}
    world, where, before = foreign("Service", "tiny-dashboard", labels=labels)
    world.run()
    world.run()
    assert world.server.children[where] == before
    assert world.condition("Accepted") == "True"


def test_an_object_that_takes_a_child_s_place_during_a_pass_is_not_hit() -> None:
    world = quiet()
    whole = world.server.apply

    async def swapped(child: Mapping[str, Any]) -> Any:
        world.server.children[SCALED]["metadata"] |= {"uid": "theirs", "ownerReferences": []}
        world.server.children[SCALED]["metadata"]["labels"] = {}
        return await whole(child)

    world.server.children[SCALED]["spec"]["replicas"] = 0
    world.server.apply = swapped  # type: ignore[method-assign]
    world.run()
    assert world.server.children[SCALED]["spec"]["replicas"] == 0
    assert world.again == AGAIN_SECONDS
    world.server.apply = whole  # type: ignore[method-assign]
    world.run()
    world.run()
    assert world.server.children[SCALED]["spec"]["replicas"] == 0
    assert "StatefulSet tiny-us-east" in world.said("Accepted")["message"]


def test_a_pod_with_any_label_that_anybody_made_ends_no_pass() -> None:
    world = quiet()
    world.server.add_pod("mine", "shard", "n1", **{Label.SHARD: "foo"})
    index = "apps.kubernetes.io/pod-index"
    world.server.add_pod("more", "learner", "n1", **{Label.REGION: "mars", index: "first"})
    world.run()
    assert world.metric("atoll_operator_pass_failures_total") == 0


def test_two_jobs_that_ask_for_one_name_do_not_fight_over_it() -> None:
    """Job tiny with the region us-east, and job tiny-us with the region east."""
    world, where, before = foreign("StatefulSet", "tiny-us-east", **OF_A_B)
    for _ in range(5):
        later(world, 60.0) if KEY in world.reconciler.memories else None
        world.run()
    assert world.server.children[where] == before
    assert "rename this job or its region" in world.said("Accepted")["message"]


def test_an_operator_of_another_version_writes_nothing_to_a_quiet_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = quiet()
    before = copy.deepcopy(world.server.children)
    monkeypatch.setattr(pods, "GONE_NODE_SECONDS", 77)
    settings = replace(SETTINGS, worker_image="worker:2", syncer_image="syncer:2")
    world.reconciler.settings = settings
    assert world.run() == []
    assert world.server.children == before
    assert world.server.job is not None
    world.server.job["spec"]["learner"] = {"template": {"spec": {"priorityClassName": "high"}}}
    world.run()
    for kind, name in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-evaluator")):
        template = world.server.children[path(kind, "demo", name)]["spec"]["template"]["spec"]
        assert template["containers"][0]["image"] == "worker:2"
        assert template["tolerations"][-1]["tolerationSeconds"] == 77


def test_a_change_of_a_kept_template_is_reverted_to_what_was_rendered() -> None:
    world = quiet()
    before = copy.deepcopy(world.server.children[SCALED])
    world.reconciler.settings = replace(SETTINGS, worker_image="worker:2")
    spec = world.server.children[SCALED]["spec"]["template"]["spec"]
    spec["containers"][0]["image"] = "edited"
    assert world.run() == ["apply StatefulSet tiny-us-east", "event ChildReverted"]
    assert world.server.children[SCALED] == before


def test_what_a_former_job_has_left_is_told_once_with_one_command_for_all_of_it() -> None:
    world = World()
    for kind, name in (("Service", "tiny-us-east"), ("ConfigMap", "tiny-slots")):
        about = {"name": name, "namespace": "demo", "uid": f"theirs-{name}", **ORPHAN}
        world.server.children[path(kind, "demo", name)] = {"metadata": about}
    world.run()
    world.run()
    said = world.said("Accepted")["message"]
    assert said.startswith("ConfigMap tiny-slots, Service tiny-us-east: a former job")
    assert said.count("kubectl delete") == 1
    assert f"-n demo -l {Label.JOB_UID}=former" in said


def test_an_object_of_one_version_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = quiet()
    compared = []

    def counted(*values: Any) -> Any:
        compared.append(values)
        return drift(*values)

    monkeypatch.setattr(changes, "drift", counted)
    children = world.server.cache.children(KEY)
    asyncio.run(world.reconciler.reconcile(KEY))
    assert world.server.cache.children(KEY) == children
    assert compared == []
    world.server.children[SCALED]["spec"]["replicas"] = 0
    assert "apply StatefulSet tiny-us-east" in world.run()
    assert compared
