"""examples/chaos-mesh/three-regions.yaml selects the pods that the operator makes of its job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from atoll_operator.kube import names
from atoll_operator.kube.names import JobOwner
from atoll_protos.names import Label

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def selectors(value: Any) -> Iterator[dict[str, str]]:
    """Find the labels of every selector in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "labelSelectors":
                yield inner
            else:
                yield from selectors(inner)


def test_each_selector_fits_pods_of_the_job_that_the_file_names() -> None:
    *_, job = yaml.safe_load_all((EXAMPLES / "three-regions.yaml").read_text())
    owner = JobOwner(namespace="here", name=job["metadata"]["name"], uid="1")
    shards = range(job["spec"]["syncer"].get("shards", 1))
    pods = [
        *(
            owner.labels(names.LEARNER_ROLE, **{Label.REGION: region["name"]})
            for region in job["spec"]["regions"]
        ),
        *(owner.labels(names.SHARD_ROLE, **{Label.SHARD: str(shard)}) for shard in shards),
    ]
    documents = yaml.safe_load_all((EXAMPLES / "chaos-mesh/three-regions.yaml").read_text())
    chosen = [labels for document in documents for labels in selectors(document)]
    assert len(chosen) == 5
    for labels in chosen:
        assert any(labels.items() <= pod.items() for pod in pods), labels
