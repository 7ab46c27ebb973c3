"""How many of a job's pods a drain may evict at a time."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.plan.children import share
from atoll_protos.names import Label
from unit.kube.cluster_values import SETTINGS, children, job


def budgets(*changes: str) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each
        for each in children(*changes).objects()
        if each["kind"] == "PodDisruptionBudget"
    }


@pytest.mark.parametrize(
    ("sync", "spare"),
    [("{quorum: 1}", 2), ("{quorum: 2}", 1), ("{quorum: 3}", 1), ("{preset: DiLoCo}", 1)],
)
def test_a_drain_takes_what_the_quorum_can_spare_of_all_regions_together(
    sync: str, spare: int
) -> None:
    spec = budgets(f"spec.sync={sync}")["tiny-learner"]["spec"]
    assert spec["maxUnavailable"] == spare
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"  # a crash never blocks a drain
    labels = {Label.JOB: "tiny", Label.JOB_UID: "job-uid", Label.ROLE: "learner"}
    assert spec["selector"] == {"matchLabels": labels}


FIVE = (
    "spec.regions=[{name: a, learners: 3}, {name: b, learners: 1}, {name: c, learners: 4}]",
    "spec.evaluator=null",
)


@pytest.mark.parametrize(
    ("quorum", "shares"),
    [(8, (0, 0, 0)), (7, (1, 0, 0)), (5, (1, 1, 1)), (4, (2, 1, 1)), (1, (3, 1, 3))],
)
def test_clusters_divide_what_the_quorum_can_spare(
    quorum: int, shares: tuple[int, int, int]
) -> None:
    of = job(*FIVE, f"spec.sync={{quorum: {quorum}}}")
    assert tuple(share(of, region.__eq__) for region in "abc") == shares
    assert share(of, lambda region: True) == 8 - quorum


def test_a_drain_of_one_cluster_takes_its_share_and_at_least_one() -> None:
    for regions, unavailable in ((("a",), 2), (("b", "c"), 2), (("b",), 1), (("a", "b", "c"), 4)):
        settings = replace(SETTINGS, regions=regions)
        found = children(*FIVE, "spec.sync={quorum: 4}", settings=settings).objects()
        (budget,) = (each for each in found if each["metadata"]["name"] == "tiny-learner"
                     and each["kind"] == "PodDisruptionBudget")  # fmt: skip
        assert budget["spec"]["maxUnavailable"] == unavailable
