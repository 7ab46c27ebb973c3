"""A pass reverts what others change in a job's children, and leaves alone what is not the job's."""

import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.edges.api import path
from atoll_operator.kube.observed.memory import REVERT_SECONDS
from atoll_operator.kube.plan import pods
from atoll_operator.kube.plan.planner import AGAIN_SECONDS, POLL_SECONDS
from atoll_protos.names import Label
from unit.kube.cluster_values import SETTINGS
from unit.kube.world import World

SCALED, MADE = ("StatefulSet", "tiny-us-east"), "apply StatefulSet tiny-us-east"


pytestmark = pytest.mark.usefixtures("still")


def quiet() -> World:
    """A job whose children are there and whose status is written."""
    world = World()
    world.run()
    assert world.run() == []
    return world


def later(world: World, seconds: float) -> None:
    """Everything that is remembered of reverts and refusals lies this much further back."""
    for key in world.memory.reverted_at:
        world.memory.reverted_at[key] -= seconds
    for of_job in world.reconciler.writer.recorder.jobs.values():
        for told in of_job.told.values():
            told.written_at -= seconds
    world.retry()


@pytest.mark.parametrize(
    ("kind", "name", "path_of", "value"),
    [
        (*SCALED, "spec.replicas", 0),
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
    child = place = world.live(kind, name)
    before = copy.deepcopy(child)
    *above, last = path_of.split(".")
    for each in above:
        place = place[each]
    place[last] = value
    assert world.run() == [f"apply {kind} {name}", "event ChildReverted"]
    assert world.live(kind, name) == before
    assert world.run() == []


def test_two_controllers_do_not_write_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    world = quiet()

    def passes(count: int, seconds: float) -> list[str]:
        """What so many passes write, each this long after a revert and a write of another."""
        wrote = []
        for _ in range(count):
            world.live(*SCALED)["spec"]["replicas"] = 7
            later(world, seconds)
            wrote += world.run()
        return wrote

    wrote = passes(20, 0.0)
    assert (wrote.count(MADE), wrote.count("event ChildReverted")) == (1, 1)
    assert world.again is not None
    assert world.again <= POLL_SECONDS
    assert passes(1, REVERT_SECONDS - 1) == []
    assert passes(20, REVERT_SECONDS).count(MADE) == 20


def test_an_edit_of_the_job_reaches_a_child_that_is_not_to_be_reverted_yet() -> None:
    world = quiet()
    for _ in range(2):
        world.live(*SCALED)["spec"]["replicas"] = 7
        world.run()
    world.job["spec"]["regions"][0]["learners"] = 3
    assert MADE in world.run()
    assert world.live(*SCALED)["spec"]["replicas"] == 3


def test_what_the_server_writes_in_its_own_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    whole = world.server.apply

    async def normalise(child: Mapping[str, Any]) -> Any:
        answer = await whole(child)
        if child["kind"] == "StatefulSet":
            for found in (answer, world.live("StatefulSet", child["metadata"]["name"])):
                found["spec"]["serviceName"] = "AS-THE-SERVER-LIKES"
        return answer

    monkeypatch.setattr(world.server, "apply", normalise)
    world.run()
    assert world.run() == []
    world.live(*SCALED)["spec"]["serviceName"] = "edited"
    assert "apply StatefulSet tiny-us-east" in world.run()
    assert world.run() == []


# ---------------------------------------------------------------- what is not the job's


def foreign(kind: str, name: str, **metadata: Any) -> tuple[World, str, dict[str, Any]]:
    """A new job in whose way an object is; and that object."""
    world = World()
    where = path(kind, "demo", name)
    about = {"name": name, "namespace": "demo", "uid": "theirs", **metadata}
    template: dict[str, Any] = {"metadata": {}, "spec": {}}
    made = world.server.children[where] = {"metadata": about, "spec": {"template": template}}
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
def test_an_object_of_another_is_never_written_and_told_with_its_owner_until_it_has_gone(
    kind: str, name: str, metadata: dict[str, Any], words: str
) -> None:
    world, where, before = foreign(kind, name, **metadata)
    wrote = world.runs()
    assert world.server.children[where] == before
    assert f"apply {kind} {name}" not in wrote
    assert not [each for each in wrote if each.startswith("delete")]
    assert "apply StatefulSet tiny-eu-west" in wrote  # the others are made
    accepted = world.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ChildrenRefused")
    assert f"{kind} {name}: " in accepted["message"]
    assert words in accepted["message"]
    assert world.run() == []
    del world.server.children[where]
    later(world, 60.0)
    assert f"apply {kind} {name}" in world.run()
    world.run()
    assert world.condition("Accepted") == "True"
    assert world.run() == []


def test_what_takes_a_childs_place_meanwhile_is_not_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = quiet()
    whole = world.server.apply

    async def swapped(child: Mapping[str, Any]) -> Any:
        theirs: dict[str, Any] = {"uid": "theirs", "ownerReferences": [], "labels": {}}
        world.live(*SCALED)["metadata"] |= theirs
        return await whole(child)

    world.live(*SCALED)["spec"]["replicas"] = 0
    with monkeypatch.context() as during:
        during.setattr(world.server, "apply", swapped)
        world.run()
    assert world.live(*SCALED)["spec"]["replicas"] == 0
    assert world.again == AGAIN_SECONDS
    world.runs()
    assert world.live(*SCALED)["spec"]["replicas"] == 0
    assert "StatefulSet tiny-us-east" in world.said("Accepted")["message"]


def test_another_version_writes_nothing_to_a_quiet_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = quiet()
    before = copy.deepcopy(world.server.children)
    monkeypatch.setattr(pods, "GONE_NODE_SECONDS", 77)
    world.reconciler.settings = replace(SETTINGS, worker_image="worker:2", syncer_image="syncer:2")
    assert world.run() == []
    assert world.server.children == before
    world.edit(learner={"template": {"spec": {"priorityClassName": "high"}}})
    world.run()
    for kind, name in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-evaluator")):
        template = world.live(kind, name)["spec"]["template"]["spec"]
        assert template["containers"][0]["image"] == "worker:2"
        assert template["tolerations"][-1]["tolerationSeconds"] == 77


def test_a_change_of_a_kept_template_is_reverted_to_what_was_rendered() -> None:
    world = quiet()
    before = copy.deepcopy(world.live(*SCALED))
    world.reconciler.settings = replace(SETTINGS, worker_image="worker:2")
    spec = world.live(*SCALED)["spec"]["template"]["spec"]
    spec["containers"][0]["image"] = "edited"
    assert world.run() == ["apply StatefulSet tiny-us-east", "event ChildReverted"]
    assert world.live(*SCALED) == before


def test_what_a_former_job_has_left_is_told_once_with_one_command_for_all_of_it() -> None:
    world, _, _ = foreign("Service", "tiny-us-east", **ORPHAN)
    about = {"name": "tiny-slots", "namespace": "demo", "uid": "theirs-too", **ORPHAN}
    world.server.children[path("ConfigMap", "demo", "tiny-slots")] = {"metadata": about}
    world.runs()
    said = world.said("Accepted")["message"]
    assert said.startswith("ConfigMap tiny-slots, Service tiny-us-east: a former job")
    assert said.count("kubectl delete") == 1
    assert f"-n demo -l {Label.JOB_UID}=former" in said
