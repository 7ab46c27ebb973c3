"""Whether a run talks over TLS: as it began, whatever becomes the default or is edited later."""

import copy
from typing import Any

import pytest

from atoll_operator.kube.plan import accepted
from atoll_protos.environment import Env
from unit.kube.test_secrets import NAMES, begun, made
from unit.kube.world import World

pytestmark = pytest.mark.usefixtures("still")


def plain() -> World:
    """A run that has begun in plain text, of which the manifest now asks for TLS."""
    world = begun(("syncer", {"shards": 1, "tls": {"mode": "Disabled"}}))
    world.job["spec"]["syncer"]["tls"] = {"mode": "Required"}
    return world


def templates(world: World) -> dict[str, Any]:
    return {
        where: each["spec"]["template"]
        for where, each in world.server.children.items()
        if "template" in each.get("spec", {})
    }


def test_a_run_in_plain_text_stays_so_when_the_default_becomes_tls() -> None:
    world = plain()
    before = copy.deepcopy(templates(world))
    world.runs(3)
    assert templates(world) == before
    assert not made(world)
    assert world.shards.own is None
    drift = world.said("Degraded")
    assert drift["reason"] == "TransportDiffers"
    assert "in plain text" in drift["message"]


def test_an_edit_of_such_a_run_changes_what_was_edited_and_no_transport() -> None:
    world = plain()
    world.job["spec"]["learner"] = {"template": {"spec": {"priorityClassName": "high"}}}
    world.run()
    for template in templates(world).values():
        names = {each["name"] for each in template["spec"]["containers"][0]["env"]}
        assert Env.TLS_DIR not in names
    learners = world.live("StatefulSet", "tiny-us-east")
    assert learners["spec"]["template"]["spec"]["priorityClassName"] == "high"


def test_a_job_that_is_resumed_without_pods_starts_as_its_manifest_says() -> None:
    world = plain()
    world.job["spec"]["suspend"] = True
    world.runs()
    world.job["spec"]["suspend"] = False
    world.runs()
    for template in templates(world).values():
        names = {each["name"] for each in template["spec"]["containers"][0]["env"]}
        assert Env.TLS_DIR in names
    assert made(world) == NAMES
    assert world.said("Degraded")["reason"] != "TransportDiffers"


def test_a_workload_tells_how_its_pods_talk_whatever_somebody_made_of_it() -> None:
    world = begun()
    live = world.live("Deployment", "tiny-syncer-0")
    live["spec"]["template"]["spec"]["containers"][0]["env"] = []
    assert "apply Deployment tiny-syncer-0" in world.run()
    assert world.live("Deployment", "tiny-syncer-0")["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    live = {**live, "kind": "Deployment"}
    assert accepted.speaks_tls([live], "tiny") is False  # nothing else tells
    assert accepted.speaks_tls([], "tiny") is None
