"""The models of the smaller parts of `spec`."""

from typing import Final

from pydantic import Field

from atoll_operator.api.job.model_base import (
    BUCKET,
    COUNT_MAX,
    NAME_CHARACTERS_MAX,
    SECONDS_MAX,
    Model,
)
from atoll_operator.api.job.pod_fields import Template

PLACE: Final = rf"^(file:///.+|{BUCKET})?$"  # a folder, or one of a bucket


class Evaluator(Model):
    """An observer that measures held-out loss on the shared parameters."""

    template: Template = Template()
    """Pod template of the evaluator; what is left out is filled in. Without a command, the
    evaluation of the built-in byte-level GPT runs."""
    every_steps: int = Field(default=100, ge=1, le=COUNT_MAX)
    """Steps between two evaluations."""


class FailureSpec(Model):
    """When lost nodes are given up."""

    node_loss_seconds: int = Field(default=20, ge=1, le=86400)
    """Seconds without a sign of life after which a node counts as lost and its pods are replaced
    elsewhere, if their sessions with the shards are dead too."""
    storm_percent: int = Field(default=50, ge=1, le=100)
    """When more than this percentage of a region's nodes (and at least 3) are lost at once, nothing
    is replaced (NodeLossHeld): a failed network looks the same."""
    max_replacements_per_slot: int = Field(default=20, ge=0, le=10_000)
    """How often a learner may be moved away from a node within a day, which begins with the first
    time."""
    syncer_lost_seconds: int = Field(default=3600, ge=1, le=SECONDS_MAX)
    """Seconds after which the learners of a cluster that cannot reach the syncer in another one are
    scaled to 0. They come back by themselves when it answers again."""


class ExportSpec(Model):
    """Where the final model goes."""

    url: str = Field(default="", max_length=2048, pattern=PLACE)
    """file:///FOLDER, a folder that spec.syncer.template mounts in every shard, or a bucket as in
    syncer.storage.url. Left out, the model stays on the volume of the only shard, if that has one,
    or in the job's folder of the bucket. `atoll run` always writes to the run folder."""


class CheckpointSpec(Model):
    """Copies of the whole state of the training, with which a new job can begin."""

    url: str = Field(default="", max_length=2048, pattern=PLACE)
    """Where they go, each into a folder step-N: file:///FOLDER, a folder that spec.syncer.template
    mounts in every shard, or a bucket as in syncer.storage.url. Give each job a place of its own.
    `atoll run` writes to checkpoints/ in the run folder if it is left out."""
    every_steps: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Steps between two checkpoints. Left out, only those are taken that `atoll checkpoint` asks
    for."""
    keep: int = Field(default=3, ge=1, le=1000)
    """How many whole checkpoints stay."""
    model: bool = True
    """Whether the folder of each gets the model as well, as model/ in the form of the export."""
    record: int | None = Field(default=None, ge=1, le=COUNT_MAX)
    """Merges of each slice that are recorded with their offers, for `atoll replay`. The record is
    below `url`. Left out, there is none."""
    from_: str = Field(default="", max_length=2048, pattern=PLACE, alias="from")
    """A checkpoint with which the run begins: the URL of its folder step-N, of a place with several
    (the newest whole one is taken), or of the state of a job that is gone, as syncer.storage.url
    with its UID. Learners, regions, shards and spec.sync may differ from that job's, the names and
    shapes of the model's tensors may not. A run that has begun is not changed by it."""


class Sizing(Model):
    """What is expected of the training, for `atoll plan` and for warnings."""

    parameters: int = Field(ge=1, le=COUNT_MAX)
    """Parameters that travel."""
    step_milliseconds: int = Field(ge=1, le=COUNT_MAX)
    """Time of a step of the learner that sets the clock."""


class FromJob(Model):
    """A job whose state was kept."""

    name: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)
    """Name of the job, in the same namespace; it may be this job's own."""
    uid: str = Field(default="", max_length=64)
    """UID of the job whose state it is, when jobs of one name have used the same volumes; left out,
    the state that was used last."""


class Restore(Model):
    """What another job has left is taken up."""

    from_job: FromJob
    """The job whose run continues under this one. It must be deleted or Failed, its volume claims
    must be there (syncer.storage.reclaim: Retain), and sync, seed and syncer.shards must have its
    values."""
