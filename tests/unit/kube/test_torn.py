"""A pass that ends at any of its writes, by a refusal or with its process: all comes right."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.kube.edges.api import ApiError
from unit.kube.world import KEY, World, lost_learner

pytestmark = pytest.mark.usefixtures("still")

WRITES = ("apply", "create", "apply_status", "delete", "mark", "apply_event")
PASSES_MAX = 12
WRITES_MAX = 40
KINDS = ("ConfigMap", "Service", "StatefulSet", "Deployment", "PodDisruptionBudget")
REFUSALS = (404, 409, 410, 422, 429, 500, 503)


class KilledError(BaseException):
    """The process has ended."""


def quiet() -> World:
    world = World()
    world.runs()
    return world


def restart(world: World) -> None:
    container = {"name": "learner", "args": ["--batch=2"]}
    world.edit(learner={"template": {"spec": {"containers": [container]}}})


def end(world: World) -> None:
    world.registrar.state, world.registrar.tick = pb.SHARD_COMPLETE, 600


CHANGES: dict[str, tuple[Callable[[], World], Callable[[World], None]]] = {
    "a job begins": (World, lambda world: None),
    "another learner": (quiet, lambda world: world.job["spec"]["regions"][0].update(learners=3)),
    "a region goes": (quiet, lambda world: world.job["spec"]["regions"].pop()),
    "other arguments": (quiet, restart),
    "suspend": (quiet, lambda world: world.edit(suspend=True)),
    "a lost node": (lost_learner, lambda world: None),
    "the end": (lost_learner, end),
}


def becomes(world: World) -> tuple[Any, ...]:
    """What there is once a pass writes nothing any more."""
    for _ in range(PASSES_MAX):
        if KEY in world.reconciler.memories:
            world.retry()
        with suppress(ApiError):  # the pass is tried again
            if not world.run():
                break
    else:
        pytest.fail(f"it writes without end: {world.run()}")
    made = {
        (each["kind"], each["metadata"]["name"]): each["spec"] if "spec" in each else each["data"]
        for each in world.server.children.values()
        if each.get("kind") in KINDS
    }
    return made, {each["type"]: each["status"] for each in world.job["status"]["conditions"]}


def torn(world: World, number: int, error: BaseException) -> bool:
    """A pass whose write of this number fails so; False where there are fewer.

    A process that has ended writes nothing more, whatever `finally` stands in its way.
    """
    server: Any = world.server
    count, ended = 0, isinstance(error, KilledError)

    def failing(name: str) -> None:
        whole = getattr(server, name)

        async def write(*values: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == number or (ended and count > number):
                raise error
            return await whole(*values, **more)

        setattr(server, name, write)

    for name in WRITES:
        failing(name)
    with suppress(type(error)):
        world.run()
    for name in WRITES:
        delattr(server, name)
    return count >= number


@pytest.mark.parametrize("change", CHANGES)
def test_a_pass_that_ends_at_any_of_its_writes_changes_nothing_of_what_comes_out(
    change: str,
) -> None:
    begins, change_it = CHANGES[change]

    def changed() -> World:
        world = begins()
        change_it(world)
        return world

    right = becomes(changed())
    writes = 0
    for number in range(1, WRITES_MAX):
        killed, refused = changed(), changed()
        writes += torn(killed, number, KilledError())
        killed.starts()
        assert becomes(killed) == right, number
        status = REFUSALS[number % len(REFUSALS)]
        torn(refused, number, ApiError(status, "no"))
        assert becomes(refused) == right, (number, status)
        if writes < number:
            break
    assert writes
