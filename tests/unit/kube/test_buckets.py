"""Shards whose state is in a bucket: what their pods get, and what becomes of the model."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.api.job.parsing import on_a_cluster
from atoll_operator.kube.plan.phase import export_url
from unit.kube.cluster_values import first_container, job, keyed, template
from unit.kube.planner_side import planned
from unit.kube.scenes import scene

BUCKET = "spec.syncer.storage={{type: ObjectStore, url: 's3://models/runs'{}}}"
PLAIN = BUCKET.format("")
KEYS = BUCKET.format(", endpoint: 'http://minio:9000', secret: keys")
SHARD = ("Deployment", "tiny-syncer-1")


def shard_of(*changes: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of shard 1 and its container."""
    pod = template(keyed(*changes), *SHARD)
    return pod["spec"], first_container(pod)


def test_a_shard_has_a_folder_of_the_job_in_the_bucket_and_no_volume_that_lasts() -> None:
    pod, container = shard_of(PLAIN)
    assert container["ATOLL_STORE"] == "s3://models/runs/job-uid/1"
    assert container["ATOLL_TAPE"] == "/data/job-uid/tape.jsonl"
    assert {"name": "atoll-data", "emptyDir": {}} in pod["volumes"]
    assert "PersistentVolumeClaim" not in {kind for kind, _ in keyed(PLAIN)}
    assert {"ATOLL_STORE_ENDPOINT", "envFrom"}.isdisjoint(container)
    assert shard_of(KEYS)[1]["ATOLL_STORE_ENDPOINT"] == "http://minio:9000"


def test_the_secret_is_for_shards_alone_and_the_user_s_own_variables_count() -> None:
    own = "[{name: shard, envFrom: [{configMapRef: {name: mine}}]}]"
    _, container = shard_of(KEYS, f"spec.syncer.template={{spec: {{containers: {own}}}}}")
    assert container["envFrom"] == [
        {"secretRef": {"name": "keys"}},
        {"configMapRef": {"name": "mine"}},
    ]
    found = keyed(KEYS)
    for kind, name in (("StatefulSet", "tiny-us-east"), ("Deployment", "tiny-evaluator")):
        assert "keys" not in str(template(found, kind, name)), name


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ((PLAIN,), "s3://models/runs/job-uid/export"),
        ((PLAIN, "spec.export={url: 'gs://trained/tiny'}"), "gs://trained/tiny"),
        (("spec.export={url: 'az://account/container'}",), "az://account/container"),
        ((PLAIN, "spec.export={url: 'file:///models'}"), "/models"),
    ],
)
def test_the_status_names_the_place_where_shards_write_the_model(
    changes: tuple[str, ...], place: str
) -> None:
    assert shard_of(*changes)[1]["ATOLL_EXPORT"] == place
    found = job(*changes).model_copy(update={"uid": "job-uid"})
    assert export_url(found).removeprefix("file://") == place
    assert on_a_cluster(found) is None  # though it has several shards


def test_a_secret_that_is_not_there_is_named() -> None:
    stuck = scene("shard unready waits=CreateContainerConfigError", KEYS)
    (pod,) = stuck.pods
    found = planned(replace(stuck, pods=(replace(pod, details='secret "keys" not found'),))).status
    assert found is not None
    (ready,) = (each for each in found.status["conditions"] if each["type"] == "SyncerReady")
    words = f'{pod.name} waits: CreateContainerConfigError: secret "keys" not found'
    assert (ready["reason"], ready["message"]) == ("PodsNotReady", words)
