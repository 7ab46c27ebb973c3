"""Sizes of the shards' volumes: what cannot be had is refused, said, and can be taken back."""

from typing import Any

import pytest

from atoll_operator.kube.edges.api import path
from atoll_protos.names import Label
from unit.kube.cluster_values import reply
from unit.kube.world import World

pytestmark = pytest.mark.usefixtures("still")

CLAIM = path("PersistentVolumeClaim", "demo", "tiny-syncer-0")
NO_RESIZE = "the storageclass that provisions the pvc must support resize"


def syncer(size: str) -> dict[str, Any]:
    return {"shards": 1, "storage": {"type": "PersistentVolumeClaim", "size": size}}


def made(size: str = "1Gi", has: str = "") -> World:
    """A job whose claim is there, with a volume of this size if one is bound to it."""
    world = World(("syncer", syncer(size)))
    world.run()
    if has:
        world.server.children[CLAIM]["status"] = {"phase": "Bound", "capacity": {"storage": has}}
    return world


def requested(world: World) -> str:
    found: str = world.server.children[CLAIM]["spec"]["resources"]["requests"]["storage"]
    return found


def edit(world: World, size: str) -> list[str]:
    assert world.server.job is not None
    world.server.job["spec"]["syncer"] = syncer(size)
    wrote = world.run()
    world.run()
    return wrote


def test_a_size_that_the_storage_class_does_not_allow_can_be_taken_back() -> None:
    world = made(has="1Gi")
    world.server.wrong = {"2Gi": NO_RESIZE}
    edit(world, "2Gi")
    assert NO_RESIZE in world.said("Accepted")["message"]
    edit(world, "1Gi")
    assert world.condition("Accepted") == "True"
    assert requested(world) == "1Gi"


@pytest.mark.parametrize(
    ("asked", "has", "then"),
    [
        ("1Gi", "4Gi", "4Gi"),  # no volume shrinks
        ("1Gi", "1Gi", "4Gi"),  # Kubernetes takes back an expansion to above what is there only
        ("2Gi", "1Gi", "2Gi"),  # the expansion to 4Gi has not come
        ("2Gi", "", "4Gi"),  # what waits for its volume cannot change
    ],
)
def test_a_smaller_size_goes_down_to_what_the_volume_has(asked: str, has: str, then: str) -> None:
    world = made("4Gi", has)
    edit(world, asked)
    assert requested(world) == then
    assert world.condition("Accepted") == "True"


def test_a_volume_that_stays_larger_is_said() -> None:
    world = made("4Gi", "4Gi")
    edit(world, "1Gi")
    world.server.add_pod("tiny-syncer-0-x", "shard", "n2", **{Label.SHARD: "0"})
    world.shards.replies = [reply()]
    world.run()
    assert world.said("SyncerReady")["message"] == (
        "claim tiny-syncer-0 keeps its 4Gi: no volume shrinks"
    )


def test_of_a_new_job_whose_claim_is_refused_nothing_is_made() -> None:
    world = World(("syncer", syncer("1Gi")))
    world.server.wrong = {"1Gi": "minimum storage is 10Gi"}
    assert world.run() == []
    world.run()
    assert not world.server.children
    assert "minimum storage is 10Gi" in world.said("Accepted")["message"]
