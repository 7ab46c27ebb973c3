"""When the planner lets an edit, or a fix, take the pods of shards."""

from dataclasses import replace
from typing import Any

import pytest

from atoll_operator.kube.observed.objects import key_of
from atoll_operator.kube.plan.actions import Plan
from unit.kube.cluster_values import job, stored
from unit.kube.planner_side import CHANGES, planned, raw
from unit.kube.scenes import scene

TEMPLATE = "spec.syncer.template={spec: {containers: [{image: fixed}]}}"
CLAIM = "spec.syncer.storage={type: PersistentVolumeClaim}"
BUCKET = "spec.syncer.storage={type: ObjectStore, url: 's3://b'}"
SUSPEND = "spec.suspend=true"
SHARD = ("Deployment", "tiny-syncer-0")


def edited(text: str, *changes: str, run: str = "r1", without: Any = None) -> Plan:
    """A job that has begun a run, and whose shard's template is edited."""
    found = scene(text, *changes, final_seconds=1.0)
    return planned(
        replace(
            found,
            job=job(*CHANGES, *changes, TEMPLATE),
            accepted=stored(*CHANGES, *changes, TEMPLATE),
            raw=raw(generation=2) | ({"status": {"run": run}} if run else {}),
            children=tuple(each for each in found.children if key_of(each) != without),
        )
    )


@pytest.mark.parametrize(
    ("text", "changes", "run", "applied"),
    [
        ("shard unready waits=ImagePullBackOff", (), "", True),  # a fix comes at once
        # the only copy of a run stays while no learner could restore it
        ("shard; syncer serves", (), "r1", False),
        ("shard; Training us-east-0", (), "r1", True),
        ("shard; syncer run=", (), "", True),
        # so it does while suspended, and while the last evaluation runs
        ("shard; evaluator; syncer serves", (SUSPEND,), "r1", False),
        ("shard; evaluator; syncer serves", (SUSPEND, CLAIM), "r1", True),
        ("shard; evaluator; syncer serves", (SUSPEND, BUCKET), "r1", True),
        ("shard; syncer serves", (BUCKET,), "r1", True),
        ("shard; evaluator; syncer complete", (), "r1", False),
        ("shard; evaluator; syncer complete", (CLAIM,), "r1", False),
    ],
)
def test_a_shard_gets_its_edit_unless_a_run_would_be_lost(
    text: str, changes: tuple[str, ...], run: str, applied: bool
) -> None:
    found = edited(text, *changes, run=run)
    assert (SHARD in map(key_of, found.children.apply)) == applied


def test_what_else_has_the_name_of_a_shard_that_waits_does_not_wait() -> None:
    service = ("Service", "tiny-syncer-0")
    made = {*map(key_of, edited("shard; syncer serves", without=service).children.apply)}
    assert service in made
    assert SHARD not in made
