"""What is kept is given again for the same input alone, and is made of nothing else."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import pydantic
import pytest

from atoll_operator.kube.plan.children import JobChildren
from atoll_operator.kube.plan.exclusions import Exclusions
from atoll_operator.kube.plan.kept import Kept, same
from atoll_operator.kube.plan.owner import Owner
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.rendering import Renderings
from atoll_operator.kube.settings import Settings
from unit.kube.cluster_values import children, job
from unit.kube.world import World


@dataclass(frozen=True)
class Value:
    number: int = 0
    text: str = field(default="", compare=False)


class Open(pydantic.BaseModel, extra="allow"):
    number: int = 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        ({"a": 1}, {"a": True}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": None}, {}),
        ([1, [2]], [1, [3]]),
        ([1], (1,)),
        (Value(text="a"), Value(text="b")),
        (Open(), Open.model_validate({"given": {}})),
        (Open(), Open(number=0)),
        (job(), job("spec.learner.template.spec.nodeSelector={a: b}")),
    ],
)
def test_values_that_a_function_could_tell_apart_are_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same(one, one)


def test_equal_values_are_the_same() -> None:
    assert same({"a": [1, Value(2, "x")]}, {"a": [1, Value(2, "x")]})
    assert same(job("spec.steps=7"), job("spec.steps=7"))


def test_what_is_made_is_made_once_for_the_same_input_and_again_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # what is kept is not made again for a look at it
    made: list[int] = []
    kept: Kept[int] = Kept(2)

    def get(key: str, number: int) -> int:
        def make() -> int:
            made.append(number)
            return number

        return kept.get(key, number, make)

    assert [get("a", 1), get("a", 1), get("a", 2), get("a", 1), get("b", 1)] == [1, 1, 2, 1, 1]
    assert made == [1, 2, 1, 1]
    get("c", 3)
    assert list(kept.found) == ["b", "c"]
    get("b", 1)
    get("d", 4)
    assert list(kept.found) == ["b", "d"]


OTHER: dict[str, Any] = {
    "job": job("spec.learner.template.spec.nodeSelector={a: b}"),
    "owner": Owner(namespace="demo", name="tiny", uid="another"),
    "settings": Settings(worker_image="worker:2", syncer_image="syncer:1"),
    "running": Running(learners=False, shards=True, evaluator=True),
    "exclusions": Exclusions(nodes={"tiny-us-east": ("n1",)}),
    "renderings": Renderings(generation=2),
    "manifest": {"steps": 600},
    "unlabelled": frozenset({"tiny-syncer-0"}),
    "unmarked": frozenset({"tiny-us-east"}),
    "selectors": {"tiny-us-east": {"a": "b"}},
}


@pytest.mark.parametrize("name", [each.name for each in fields(JobChildren)])
def test_every_input_of_the_children_makes_others(name: str) -> None:
    one = children()
    other = replace(one, **{name: OTHER[name]})
    assert not same(one, other)
    assert not same(one.objects(), other.objects())


def test_passes_over_a_job_at_rest_make_its_children_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    world, made = World(), []
    objects = JobChildren.objects

    def counted(self: JobChildren) -> Any:
        made.append(self)
        return objects(self)

    monkeypatch.setattr(JobChildren, "objects", counted)
    for _ in range(3):
        world.run()
    first = len(made)
    for _ in range(5):
        world.run()
    assert first == len(made)
    assert world.server.job is not None
    world.server.job["spec"]["regions"][0]["learners"] = 3
    assert "apply StatefulSet tiny-us-east" in world.run()
