"""One model of the status: what is written is what the CRD describes and what is read back."""

import json
import math
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api import crd
from atoll_operator.api.status.job_status import SeenJob, Status, status_of
from atoll_operator.local import local_status
from unit.local.test_local_status import NOW, job

WRITTEN = (
    '{"learnersDesired": 3, "quorum": 2,'
    ' "columns": {"learners": "1/3", "syncer": "2/2", "progress": "25%"},'
    ' "regions": [{"name": "a", "learners": 2, "ready": 1, "replaced": 2, "live": 1, "lost": 0},'
    ' {"name": "b", "learners": 1, "live": 0, "lost": 1}],'
    ' "syncer": {"shards": 2, "ready": 2, "epochs": [3, 0]}, "run": "r", "learnersLive": 1,'
    ' "progress": {"step": 50, "tokens": 400, "lastUpdatedTime": "2026-01-01T00:00:00Z",'
    ' "loss": "2.0000", "progressPercentage": 25, "estimatedRemainingSeconds": 15,'
    ' "latePercentage": 0,'
    ' "tokenCounts": {"trained": 400, "merged": 233, "overlap": 66, "late": 33, "lost": 0,'
    ' "pending": 68}, "goodput": "0.5825", "participation": "0.5000",'
    ' "uptime": "0.7500", "links": [{"region": "", "upBytes": 0, "downBytes": 9},'
    ' {"region": "a", "upBytes": 12, "downBytes": 30}],'
    ' "metrics": [{"name": "outer_loss", "value": "1.2500"},'
    ' {"name": "outer_loss_step", "value": "40"}]}}'
)


def replies() -> list[pb.StatusReply]:
    slots = [
        pb.SlotStatus(slot="a-0", state=pb.SLOT_TRAINING, loss=2.0, tokens=400, step_seconds=0.1),
        pb.SlotStatus(slot="b-0", state=pb.SLOT_LOST, loss=math.nan),
    ]
    registrar = pb.StatusReply(
        run="r", state=pb.SHARD_SERVING, tick=50, ticks_per_second=10.0, epoch=3, trained=400,
        slots=slots, evaluation=pb.Evaluation(loss=1.25, tick=40), merges=5, merged_offers=8,
        seconds=40.0, training_seconds=30.0,
        counts=pb.Tokens(
            trained=800, merged=500, overlap=100, late=50, lost=2, pending=148, slices=2
        ),
        links=[pb.LinkBytes(region="a", received=5, sent=10), pb.LinkBytes(sent=9)],
    )  # fmt: skip
    counts = pb.Tokens(trained=400, merged=200, overlap=100, late=50, pending=50, slices=1)
    link = pb.LinkBytes(region="a", received=7, sent=20)
    other = pb.StatusReply(
        state=pb.SHARD_SERVING, tick=60, ticks_per_second=10.0, shard=1, merges=1,
        merged_offers=1, counts=counts, links=[link],
    )  # fmt: skip
    return [registrar, other]


def seen(*given: pb.StatusReply | None) -> Status:
    view = SeenJob(job=job(), replies=given, asked_at=NOW, ready={"a": 1}, replaced={"a": 2})
    return status_of(view)


def test_the_newest_checkpoint_is_where_shard_0_says_it_is() -> None:
    registrar, other = replies()
    assert seen(registrar, other).checkpoint is None
    registrar.checkpoint = "s3://b/step-40"
    assert seen(registrar, other).checkpoint == "s3://b/step-40"
    assert seen(None, other).checkpoint is None


def test_the_written_form_stays_byte_for_byte() -> None:
    assert json.dumps(seen(*replies()).to_object()) == WRITTEN


def test_a_shard_is_counted_as_ready_once_its_values_are_read_back() -> None:
    registrar, other = replies()
    other.unread = 1
    found = seen(registrar, other)
    assert found.columns is not None
    assert found.syncer is not None
    assert (found.columns.syncer, found.syncer.ready) == ("1/2", 1)


def test_what_is_written_is_read_back() -> None:
    local = local_status.status(job(), replies(), NOW)
    for status in (seen(*replies()), seen(None, replies()[1]), local):
        text = json.dumps(status.to_object())
        assert Status.read(json.loads(text)) == status
    newer = {"quorum": 2, "phase": "new", "syncer": {"shards": 1, "ready": 1, "epochs": [], "x": 3}}
    assert Status.read(newer).to_object() == newer  # what another version has written is kept
    assert Status.read(None).to_object() == {}


def test_the_schema_has_every_field_that_is_written() -> None:
    status = local_status.status(job(), replies(), NOW).to_object()
    check(status, crd.status_schema())


def check(value: Any, node: dict[str, Any]) -> None:
    """The value has the schema's types and no field that it lacks (the API server drops those)."""
    if isinstance(value, dict):
        assert value.keys() <= node["properties"].keys()
        for name, inner in value.items():
            check(inner, node["properties"][name])
    elif isinstance(value, list):
        for inner in value:
            check(inner, node["items"])
    else:
        kind = {"string": str, "integer": int}[node["type"]]
        assert isinstance(value, kind) or (value is None and node.get("nullable"))
