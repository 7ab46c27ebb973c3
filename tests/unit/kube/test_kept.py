"""The comparison of a job's children is kept, and given again for the same input alone."""

import copy
from dataclasses import fields, replace
from typing import Any

import pytest

from atoll_operator.api.job.spec import KIND
from atoll_operator.kube.names import JobOwner
from atoll_operator.kube.plan import applied
from atoll_operator.kube.plan.accepted import Renderings
from atoll_operator.kube.plan.children import JobChildren
from atoll_operator.kube.plan.phase import Running
from atoll_operator.kube.plan.replacements import Exclusions
from atoll_operator.kube.settings import Settings
from unit.kube.cluster_values import children, job
from unit.kube.world import World

OTHER: dict[str, Any] = {
    "job": job("spec.learner.template.spec.nodeSelector={a: b}"),
    "owner": JobOwner(namespace="demo", name="tiny", uid="another"),
    "settings": Settings(worker_image="worker:2", syncer_image="syncer:1"),
    "running": Running(learners=False, shards=True, evaluator=True),
    "exclusions": Exclusions(nodes={"tiny-us-east": ("n1",)}),
    "renderings": Renderings(generation=2),
    "manifest": {"steps": 600},
}


@pytest.mark.parametrize("name", [each.name for each in fields(JobChildren)])
def test_every_input_of_the_children_makes_others(name: str) -> None:
    one = children()
    other = replace(one, **{name: OTHER[name]})
    assert one != other
    assert one.objects() != other.objects()


def test_passes_over_a_job_at_rest_compare_its_children_once_and_an_edit_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # what is kept is not made again for a look at it
    world, made, compare = World(), [], applied.compare

    def counted(*values: Any) -> Any:
        made.append(values)
        return compare(*values)

    monkeypatch.setattr(applied, "compare", counted)
    for _ in range(3):
        world.run()
    first, show = len(made), world.server.show

    def show_the_job() -> None:
        """The watches show the job, and no child again."""
        world.server.version += 1
        raw = copy.deepcopy(world.job)
        raw["metadata"]["resourceVersion"] = str(world.server.version)
        world.server.cache.listed(KIND, "", [raw], world.server.version)

    monkeypatch.setattr(world.server, "show", show_the_job)
    world.runs(5)
    assert len(made) == first
    for change in (
        {"regions": [{"name": "us-east", "learners": 3}, {"name": "eu-west"}]},
        {"learner": {"template": {"spec": {"containers": [{"stdin": True}]}}}},
        {"learner": {"template": {"spec": {"containers": [{"stdin": 1}]}}}},
    ):
        world.edit(**change)
        assert "apply StatefulSet tiny-us-east" in world.run()
        with monkeypatch.context() as all_again:
            all_again.setattr(world.server, "show", show)
            world.runs()
        assert world.run() == []


def test_what_is_kept_of_all_jobs_is_bounded_by_their_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    kept: dict[str, Any] = {}
    monkeypatch.setattr(applied, "_KEPT", kept)
    World().run()
    ((given, found),) = kept.values()
    kept.clear()
    kept.update({f"former-{n}": (given, found) for n in range(3)})
    monkeypatch.setattr(applied, "KEPT_MAX", 3 * len(found) - 1)
    World().run()
    assert list(kept) == ["former-2", World().job["metadata"]["uid"]]
