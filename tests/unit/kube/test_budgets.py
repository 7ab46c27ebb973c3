"""How many of a job's pods a drain may evict at a time."""

from typing import Any

import pytest

from atoll_protos.names import Label
from unit.kube.cluster_values import children


def budgets(*changes: str) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each
        for each in children(*changes).objects()
        if each["kind"] == "PodDisruptionBudget"
    }


def test_a_pod_that_crashes_never_blocks_a_drain() -> None:
    found = budgets()
    assert found
    for budget in found.values():
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("sync", "spare"),
    [("{quorum: 1}", 2), ("{quorum: 2}", 1), ("{quorum: 3}", 1), ("{preset: DiLoCo}", 1)],
)
def test_a_drain_takes_what_the_quorum_can_spare_of_all_regions_together(
    sync: str, spare: int
) -> None:
    spec = budgets(f"spec.sync={sync}")["tiny-learner"]["spec"]
    assert spec["maxUnavailable"] == spare
    labels = {Label.JOB: "tiny", Label.JOB_UID: "job-uid", Label.ROLE: "learner"}
    assert spec["selector"] == {"matchLabels": labels}
