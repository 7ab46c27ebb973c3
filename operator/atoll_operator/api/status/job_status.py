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

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.fields import IN_CAMEL_CASE, RegionSpec
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.reasons import FALSE, TRUE, UNKNOWN

# As metav1.Condition has them.
TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
# Shards that ask nothing more of learners, and shards that do their work.
ENDED: Final = frozenset({pb.SHARD_FINAL, pb.SHARD_COMPLETE})
GONE: Final = frozenset({pb.SLOT_LOST, pb.SLOT_LEFT})  # without a session: nothing new is heard
SERVING: Final = frozenset({pb.SHARD_SERVING, *ENDED})


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
        """Read a status as the API server or status.json has it; None is an empty one.

        A field that cannot be read, since others may write the status too, counts as absent.
        """
        given = dict(raw or {})
        try:
            return cls.model_validate(given)
        except ValidationError as wrong:
            places = [(*error["loc"], None)[:2] for error in wrong.errors()]
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
        for condition in self.conditions or []:
            if condition.type == kind and condition.status == TRUE:
                return condition
        return None


# ---------------------------------------------------------------- made of what shards reply


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """What one status is made from. `replies` are at most 15 s old, None where there is none."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    asked_at: str  # RFC 3339, when the replies came
    ready: Mapping[str, int] = field(default_factory=dict)  # pods, by region that is served here
    replaced: Mapping[str, int] = field(default_factory=dict)  # pods, by region
    endpoints: Sequence[str] | None = None  # of shards that are exposed, once all are known
    idle: bool = False  # nothing runs, and nothing should run

    @property
    def registrar(self) -> pb.StatusReply | None:
        return self.replies[0] if self.replies else None

    @property
    def is_complete(self) -> bool:
        return self.registrar is not None and self.registrar.state == pb.SHARD_COMPLETE


def reads(reply: pb.StatusReply) -> bool:
    return reply.state in SERVING and reply.unread > 0


def in_first_step(slot: pb.SlotStatus) -> bool:
    """Whether its process has made no step yet: the first one may compile for minutes."""
    return slot.state in (pb.SLOT_TRAINING, pb.SLOT_STALLED) and not slot.step_seconds


def starts(slot: pb.SlotStatus) -> bool:
    return slot.state == pb.SLOT_JOINING or in_first_step(slot)


def training(replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """Return the slots that have made a step and train, by the registrar; None: it is silent."""
    registrar = replies[0] if replies else None
    if registrar is None:
        return None
    return [
        slot
        for slot in registrar.slots
        if slot.state == pb.SLOT_TRAINING and not in_first_step(slot)
    ]


def listed(job: Job, replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """Those in training that the manifest here has; None when the registrar cannot be asked."""
    live, slots = training(replies), job.spec.slots
    return None if live is None else [each for each in live if each.slot in slots]


def unlisted(job: Job, replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    why = "is not in this manifest: it is shut out 90 s after it came, or after it was taken out"
    slots = job.spec.slots
    others = (each.slot for each in training(replies) or () if each.slot not in slots)
    return tuple(f"{slot} trains, and {why}" for slot in others)


def missing(job: Job, replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Return the slots that are not in training; none when the registrar cannot be asked."""
    live = training(replies)
    present = {each.slot for each in live or ()}
    return () if live is None else tuple(x for x in job.spec.slots if x not in present)


def without_step(job: Job, registrar: pb.StatusReply) -> tuple[str, ...]:
    """Return the slots without a step in the whole run; none if the registrar began again."""
    made = {slot.slot for slot in registrar.slots if slot.tokens or slot.step_seconds}
    return () if registrar.epoch > 1 else tuple(x for x in job.spec.slots if x not in made)


def status_of(view: SeenJob) -> Status:
    spec, shards = view.job.spec, view.job.spec.syncer.shards
    live = listed(view.job, view.replies)
    if live is None and view.idle:
        live = []
    answers = [reply for reply in view.replies if reply is not None]
    ready = sum(reply.state in SERVING and not reads(reply) for reply in answers)
    progress = _progress(view, live)
    runs = [reply.run for reply in answers if reply.run]
    if view.is_complete:
        live = []  # who has yet to leave does not train
    return Status(
        learners_desired=spec.learners,
        quorum=spec.learners_needed,
        columns=Columns(
            learners=f"{'?' if live is None else len(live)}/{spec.learners}",
            syncer=f"{ready}/{shards}",
            progress=f"{progress.progress_percentage}%" if progress else None,
        ),
        regions=[_region(view, region) for region in spec.regions],
        syncer=SyncerStatus(
            shards=shards,
            ready=ready,
            epochs=[reply.epoch if reply else 0 for reply in view.replies],
            endpoints=None if view.endpoints is None else list(view.endpoints),
        ),
        run=runs[0] if runs else None,
        checkpoint=(view.registrar and view.registrar.checkpoint) or None,
        learners_live=None if live is None else len(live),
        progress=progress,
    )


def _region(view: SeenJob, region: RegionSpec) -> RegionStatus:
    name, own, served = region.name, set(region.slots), region.name in view.ready
    registrar = view.registrar
    states = [slot.state for slot in registrar.slots if slot.slot in own] if registrar else []
    live = [slot for slot in training(view.replies) or () if slot.slot in own]
    return RegionStatus(
        name=name,
        learners=region.learners,
        ready=view.ready[name] if served else None,
        replaced=view.replaced.get(name, 0) if served else None,
        live=0 if view.is_complete else len(live) if registrar else None,
        lost=states.count(pb.SLOT_LOST) if registrar else None,
    )


def _progress(view: SeenJob, live: Sequence[pb.SlotStatus] | None) -> ProgressStatus | None:
    known, registrar = [reply for reply in view.replies if reply is not None], view.registrar
    if registrar is None or len(known) < len(view.replies) or live is None:
        return None
    spec = view.job.spec
    step = min(reply.tick for reply in known)
    tokens = registrar.trained
    losses = [slot.loss for slot in live if math.isfinite(slot.loss)]
    done, total = (step, spec.steps) if spec.steps else (tokens, spec.tokens or 1)
    rate = min(reply.ticks_per_second for reply in known)
    left = max(0, round((spec.steps - step) / rate)) if spec.steps and rate > 0 else None
    return ProgressStatus(
        step=step,
        tokens=tokens,
        last_updated_time=view.asked_at,
        loss=f"{sum(losses) / len(losses):.4f}" if losses else None,
        progress_percentage=min(100, 100 * done // total),
        estimated_remaining_seconds=left,
        late_percentage=round(100 * registrar.late_share),
        token_counts=(counts := token_counts(known)),
        goodput=_share(counts.merged, counts.trained),
        participation=_share(
            sum(reply.merged_offers for reply in known),
            spec.learners * sum(reply.merges for reply in known),
        ),
        uptime=_share(registrar.training_seconds, registrar.seconds),
        links=_links(known),
        metrics=_metrics(registrar),
    )


def token_counts(replies: Sequence[pb.StatusReply]) -> TokenCounts:
    """Means over the slices of all shards, in whole tokens; rule 13's law holds of them."""
    slices = max(1, sum(reply.counts.slices for reply in replies))

    def mean(name: str) -> int:
        return int(sum(getattr(reply.counts, name) for reply in replies)) // slices

    found = {name: mean(name) for name in ("merged", "overlap", "late", "lost")}
    trained = mean("trained")
    return TokenCounts(trained=trained, **found, pending=trained - sum(found.values()))


def _share(part: float, whole: float) -> str | None:
    return f"{min(1.0, part / whole):.4f}" if whole else None


def _links(replies: Sequence[pb.StatusReply]) -> list[LinkStatus] | None:
    up, down = Counter[str](), Counter[str]()
    for each in (link for reply in replies for link in reply.links):
        up[each.region] += each.received
        down[each.region] += each.sent
    found = [
        LinkStatus(region=region, up_bytes=up[region], down_bytes=down[region])
        for region in sorted(up.keys() | down.keys())
    ]
    return found or None


def _metrics(registrar: pb.StatusReply) -> list[Metric] | None:
    if not registrar.HasField("evaluation"):
        return None
    return [
        Metric(name="outer_loss", value=f"{registrar.evaluation.loss:.4f}"),
        Metric(name="outer_loss_step", value=str(registrar.evaluation.tick)),
    ]
