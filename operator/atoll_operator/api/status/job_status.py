"""The status of a job: the one definition of every field, its writer and its reader; pure.

Three rules decide what a field says:

1. What cannot be seen is absent. A status never repeats the last value of something that cannot
   be asked now: when the registrar (shard 0) is silent, `learnersLive` and `progress` are absent.
   A reply counts as current for 15 s (the caller passes None for an older one).
2. The job's clock is the slowest shard's: `progress.step` is the lowest tick, because only up to
   there has every part of the model been merged. So progress is absent as long as any shard is
   silent, while counts of learners need the registrar alone.
3. Texts for people are made here once (`columns`). Numbers that are not whole are texts with four
   decimals, as the conventions of the Kubernetes API forbid floats.

A finished job keeps its last status, since the shards that could say more are gone. A field that is
added must be optional, because an older operator may have written the object; a field that this
version does not know is kept when a status is read and written again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from atoll_operator.api.job.model_base import IN_CAMEL_CASE
from atoll_operator.api.status.reasons import FALSE, TRUE, UNKNOWN

# As metav1.Condition has them.
TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class StatusPart(BaseModel):
    """A part of a status: camelCase outside, and fields of a newer version are kept as they are."""

    model_config = ConfigDict(**IN_CAMEL_CASE, extra="allow")

    def to_object(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)


class Condition(StatusPart):
    """One condition. `atoll run` gives no generation and no time."""

    type: str = Field(max_length=316, pattern=TYPE)
    """Which question this condition answers."""
    status: str = Field(json_schema_extra={"enum": [TRUE, FALSE, UNKNOWN]})
    """True, False, or Unknown when it cannot be seen now."""
    observed_generation: int | None = Field(default=None, ge=0)
    """The metadata.generation that this condition describes."""
    last_transition_time: str | None = Field(
        default=None, json_schema_extra={"format": "date-time"}
    )
    """When the status of this condition changed last."""
    reason: str = Field(min_length=1, max_length=1024, pattern=REASON)
    """Why, in one word; docs/conditions.md has the remedies."""
    message: str = Field(default="", max_length=32768)
    """The details, for a person to read."""


class Columns(StatusPart):
    """Texts for the columns of `kubectl get`."""

    learners: str
    """Learners in training / asked for; ? when unknown."""
    syncer: str
    """Shards that serve / all shards."""
    progress: str | None = None
    """How much of spec.steps or spec.tokens is done, such as 42%."""


class RegionStatus(StatusPart):
    """What is seen of one region."""

    name: str
    """Name of the region, as in spec.regions."""
    learners: int
    """Learners that the region should have."""
    ready: int | None = None
    """Learners that are Ready, of several hosts those with so many Ready hosts as they need, host 0
    among them; only for regions that this cluster serves."""
    replaced: int | None = None
    """Pods that were moved away so far, from nodes that were lost or on which they crashed again
    and again; as for ready."""
    live: int | None = None
    """Learners in training; absent while the syncer is silent."""
    lost: int | None = None
    """Learners whose connection to the syncer was lost; absent as for live."""


class SyncerStatus(StatusPart):
    """What is seen of the shards."""

    shards: int
    """Shards that the job should have."""
    ready: int
    """Shards that answer and serve."""
    standbys: int | None = None
    """Shards whose second process waits, so that it can take over; only with syncer.standby."""
    epochs: list[int]
    """For each shard, the number of the process that runs it, which grows with every start; 0 while
    the shard is silent."""
    endpoints: list[str] | None = None
    """host:port of each shard for other clusters, as spec.syncer.expose has made them, ready to be
    copied into spec.syncer.endpoints; absent until all of them are known. Only where the syncer
    runs."""


class Metric(StatusPart):
    """One number that the evaluator has measured."""

    name: str
    """outer_loss: held-out loss; outer_loss_step: the step it was measured at."""
    value: str
    """The value, as a decimal number."""


class TokenCounts(StatusPart):
    """What became of the tokens of the run, means over slices: trained is the sum of all others."""

    trained: int
    """Tokens that learners have trained in this run."""
    merged: int
    """Tokens that a commit contains."""
    overlap: int
    """Tokens trained while a merge of earlier ones was on its way."""
    late: int
    """Tokens that came too late for a merge."""
    lost: int
    """Tokens trained by processes that are gone."""
    pending: int
    """Tokens of living processes that may still be merged, and what rounding leaves over."""


class LinkStatus(StatusPart):
    """What has gone over the links of a region since the shards' present processes began."""

    region: str
    """Name of the region; empty for evaluators and exports."""
    up_bytes: int
    """Bytes from its learners to the shards."""
    down_bytes: int
    """Bytes from the shards to its learners."""


class ProgressStatus(StatusPart):
    """How far the training is; absent while a shard is silent."""

    step: int
    """The job's step (tick): the lowest over the shards, as the slowest decides."""
    tokens: int
    """Tokens that the learners have trained."""
    last_updated_time: Time
    """When the shards gave these numbers."""
    loss: str | None = None
    """Mean of the learners' newest training losses, as a decimal number."""
    progress_percentage: int
    """How much of spec.steps or spec.tokens is done."""
    estimated_remaining_seconds: int | None = None
    """Seconds to the end at the present rate; only for a length in steps."""
    late_percentage: int | None = None
    """How much of what the learners' present processes have trained came too late for a merge, in
    percent. Above 10, the condition Progressing says what to do."""
    token_counts: TokenCounts | None = None
    """What became of the trained tokens."""
    goodput: str | None = None
    """Share of the trained tokens that is merged, as a decimal number from 0 to 1."""
    participation: str | None = None
    """Mean share of the learners in a commit that merges offers, as a decimal number."""
    uptime: str | None = None
    """Share of the time since the first step in which at least one learner was in training, as
    shard 0 has seen it, as a decimal number."""
    links: list[LinkStatus] | None = None
    """Bytes between the learners of each region and the shards."""
    metrics: list[Metric] | None = None
    """What the evaluator measured last."""


class FailureRecord(StatusPart):
    """How the job stood when it failed; a change of it lets a failed job try again."""

    generation: int
    """The metadata.generation with which the job failed."""
    retry: str = ""
    """The value of the annotation atoll.dev/retry at that time."""


class Status(StatusPart):
    """What is seen of the job; what cannot be seen now is absent."""

    learners_desired: int | None = None
    """Learners of all regions that the job should have."""
    quorum: int | None = None
    """Learners that must be in training for merges to continue: spec.sync.quorum or its default; 1
    where learners wait for each other."""
    columns: Columns | None = None
    """Texts for the columns of kubectl get."""
    regions: list[RegionStatus] | None = None
    """What is seen of each region."""
    syncer: SyncerStatus | None = None
    """What is seen of the shards."""
    run: str | None = None
    """Random id of the training. It stays the same for the life of the job, unless a failed job
    that has kept nothing starts over."""
    learners_live: int | None = None
    """Learners in training; absent while the syncer is silent."""
    progress: ProgressStatus | None = None
    """How far the training is; absent while a shard is silent."""
    checkpoint: str | None = None
    """URL of the newest whole checkpoint, for spec.checkpoint.from of a job that begins with it;
    absent until there is one."""
    start_time: Time | None = None
    """When the job was started, or resumed after a suspension."""
    completion_time: Time | None = None
    """When the job became Complete or Failed."""
    failure: FailureRecord | None = None
    """How the job stood when it failed; absent: it has not."""
    export_url: str | None = Field(default=None, alias="exportURL")
    """Where the final model is, once the job is Complete."""
    observed_generation: int | None = None
    """The metadata.generation that this status describes."""
    conditions: list[Condition] | None = None
    """What holds for the job: all types from the first pass. docs/conditions.md lists every reason
    and its remedy."""

    @classmethod
    def read(cls, raw: Mapping[str, Any] | None) -> Self:
        """A status as the API server or status.json has it; None is an empty one.

        A field that cannot be read, since others may write the status too, counts as absent.
        """
        given = dict(raw or {})
        try:
            return cls.model_validate(given)
        except ValidationError as wrong:
            places = [(*each["loc"], None)[:2] for each in wrong.errors()]
        known = given.pop("conditions", None)
        for name in {name for name, _ in places} & given.keys():
            del given[str(name)]
        if isinstance(known, list):
            spoilt = {number for name, number in places if name == "conditions"}
            given["conditions"] = [c for i, c in enumerate(known) if i not in spoilt]
        return cls.model_validate(given)

    @field_validator("start_time", "completion_time")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        if text is not None and datetime.fromisoformat(text).tzinfo is None:
            raise ValueError("no time zone")
        return text

    def true_condition(self, kind: str) -> Condition | None:
        for each in self.conditions or []:
            if each.type == kind and each.status == TRUE:
                return each
        return None
