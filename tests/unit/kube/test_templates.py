"""A wrong pod template: of a new job nothing is made, a running one goes on, and a fix arrives."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.edges.api import path
from atoll_operator.kube.plan.planner import AGAIN_SECONDS
from unit.kube.test_reconcile import KEY, World

WRONG = {"imagee": ".spec.template.spec.containers[0].imagee: field not declared in schema"}
TYPO = {"template": {"spec": {"containers": [{"name": "x", "imagee": "y"}]}}}
RIGHT = {"template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}}


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time stands still: what is written differs only by what is seen."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)


def world(learner: dict[str, Any]) -> World:
    found = World(("learner", learner))
    found.server.wrong = WRONG
    return found


def edit(found: World, learner: dict[str, Any]) -> None:
    assert found.server.job is not None
    found.server.job["spec"]["learner"] = learner
    found.server.job["metadata"]["generation"] += 1


def test_nothing_of_a_new_job_is_made_and_its_first_status_says_why() -> None:
    wrong = world(TYPO)
    assert wrong.run() == []
    assert wrong.again == AGAIN_SECONDS
    wrong.run()
    assert not wrong.server.children
    accepted = wrong.said("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TemplateRefused")
    assert (
        "StatefulSet tiny-us-east: .spec.template.spec.containers[0].imagee"
        in (accepted["message"])
    )
    assert (
        "(from spec.learner.template and podOverrides of the region us-east)"
        in (accepted["message"])
    )
    assert wrong.said("Ready")["reason"] == "Refused"
    assert wrong.run() == []


def test_it_is_tried_again_and_still_nothing_is_made() -> None:
    wrong = world(TYPO)
    wrong.run()
    memory = wrong.reconciler.memories[KEY]
    for key, each in memory.refused.items():
        memory.refused[key] = replace(each, again_at=0.0)
    wrong.run()
    assert memory.refused
    assert not wrong.server.children


def test_the_fix_of_a_new_job_arrives_at_once() -> None:
    wrong = world(TYPO)
    wrong.run()
    wrong.run()
    edit(wrong, RIGHT)
    assert "apply StatefulSet tiny-us-east" in wrong.run()
    wrong.run()
    assert wrong.condition("Accepted") == "True"


def test_a_wrong_edit_leaves_what_runs_as_it_is_and_its_fix_arrives() -> None:
    running = world(RIGHT)
    running.run()
    running.run()
    where = path("StatefulSet", "demo", "tiny-us-east")
    before = running.server.children[where]["spec"]["template"]
    edit(running, TYPO)
    running.run()
    running.run()
    assert running.server.children[where]["spec"]["template"] == before
    assert running.said("Accepted")["reason"] == "TemplateRefused"
    fixed = {"template": {"spec": {"containers": [{"name": "x", "image": "z"}]}}}
    edit(running, fixed)
    running.run()
    now = running.server.children[where]["spec"]["template"]["spec"]["containers"][0]
    assert now["image"] == "z"
    running.run()
    assert running.condition("Accepted") == "True"


def test_a_wrong_template_of_the_evaluator_names_its_own_field() -> None:
    wrong = World(("evaluator", TYPO))
    wrong.server.wrong = WRONG
    wrong.run()
    wrong.run()
    assert "(from spec.evaluator.template)" in wrong.said("Accepted")["message"]


def test_an_object_of_somebody_else_is_left_to_the_look_at_its_owner() -> None:
    """A dry run against it would find our selector wrong, which is not what is wrong."""
    there = world(RIGHT)
    where = path("StatefulSet", "demo", "tiny-us-east")
    there.server.children[where] = {
        "kind": "StatefulSet", "metadata": {"name": "tiny-us-east", "uid": "theirs"},
        "spec": {"template": {"metadata": {}}},
    }  # fmt: skip
    there.server.wrong = {}
    there.run()
    there.run()
    assert there.said("Accepted")["reason"] == "ChildrenRefused"
    assert path("StatefulSet", "demo", "tiny-eu-west") in there.server.children
