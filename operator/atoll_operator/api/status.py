"""The status of a job: the one definition of every field, its writer and its reader; pure.

Theory of operation: how a status comes to be
---------------------------------------------
`Status` and the models in it define the fields. The CRD's status schema and docs/spec.md are
generated from them; both executors write them, and everything that reads a status reads them:

    shards' replies (gRPC) --+
    counts of pods ----------+--> View --> of(view) --> Status --+--> to_object(): status.json,
    the checked job ---------+                                   |    or the object's status
                                                                 |
    facts --> conditions.decide() --> conditions ----------------+    read(): the other direction

The operator and `atoll run` differ only in what they know: `atoll run` has no pods to count and
leaves `regions[].ready` out. Whatever a reader knows from one of them holds for the other.

Three rules decide what a field says:

1. What cannot be seen is absent. A status never repeats the last value of something that cannot
   be asked now: when the registrar (shard 0) is silent, `learnersLive` and `progress` are absent,
   and the column of learners says `?/3`. A reply counts as current for 15 s (the caller passes
   None for an older one). A reader takes an absent field as unknown, not as 0.
2. The job's clock is the slowest shard's. Every shard keeps its own tick; `progress.step` is the
   lowest, because only up to there has every part of the model been merged. So progress is
   absent as long as any shard is silent, while counts of learners need the registrar alone.
3. Texts for people are made here once. `columns` holds what `kubectl get` shows, so that no other
   place puts the same numbers together in another way. Numbers that are not whole are texts with
   four decimals, as the conventions of the Kubernetes API forbid floats.

A finished job (Complete or Failed) keeps its last status: the caller goes on writing what it has
read, since the shards that could say more are gone.

`to_object()` leaves out what is None and keeps the order of the fields below. A field that is
added must be optional, because an older operator may have written the object; a field that this
version does not know is kept when a status is read and written again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.facts import SERVING
from atoll_operator.api.reasons import TRUE
from atoll_operator.api.shown import Condition, Shown
from atoll_operator.api.spec import Job
from atoll_protos.names import slot_name


class Columns(Shown):
    """Texts for the columns of `kubectl get`."""

    learners: str = Field(description="Learners in training / asked for; ? when unknown.")
    syncer: str = Field(description="Shards that serve / all shards.")
    progress: str | None = Field(
        default=None, description="How much of spec.steps or spec.tokens is done, such as 42%."
    )


class RegionStatus(Shown):
    """What is seen of one region."""

    name: str = Field(description="Name of the region, as in spec.regions.")
    learners: int = Field(description="Learners that the region should have.")
    ready: int | None = Field(
        default=None,
        description=(
            "Learners that are Ready, of several hosts those with so many Ready hosts as they need,"
            " host 0 among them; only for regions that this cluster serves."
        ),
    )
    replaced: int | None = Field(
        default=None,
        description=(
            "Pods that were moved away so far, from nodes that were lost or on which they crashed"
            " again and again; as for ready."
        ),
    )
    live: int | None = Field(
        default=None, description="Learners in training; absent while the syncer is silent."
    )
    lost: int | None = Field(
        default=None,
        description="Learners whose connection to the syncer was lost; absent as for live.",
    )


class SyncerStatus(Shown):
    """What is seen of the shards."""

    shards: int = Field(description="Shards that the job should have.")
    ready: int = Field(description="Shards that answer and serve.")
    epochs: list[int | None] = Field(
        description=(
            "For each shard, the number of the process that runs it, which grows with every start;"
            " null while the shard is silent."
        )
    )
    endpoints: list[str | None] | None = Field(  # null: written by an earlier version
        default=None,
        description=(
            "host:port of each shard for other clusters, as spec.syncer.expose has made them, ready"
            " to be copied into spec.syncer.endpoints; absent until all of them are known. Only"
            " where the syncer runs."
        ),
    )


class Metric(Shown):
    """One number that the evaluator has measured."""

    name: str = Field(
        description="outer_loss: held-out loss; outer_loss_step: the step it was measured at."
    )
    value: str = Field(description="The value, as a decimal number.")


class Progress(Shown):
    """How far the training is; absent while a shard is silent."""

    step: int = Field(
        description="The job's step (tick): the lowest over the shards, as the slowest decides."
    )
    tokens: int = Field(description="Tokens that the learners have trained.")
    last_updated_time: str = Field(
        description="When the shards gave these numbers.",
        json_schema_extra={"format": "date-time"},
    )
    loss: str | None = Field(
        default=None,
        description="Mean of the learners' newest training losses, as a decimal number.",
    )
    progress_percentage: int = Field(description="How much of spec.steps or spec.tokens is done.")
    estimated_remaining_seconds: int | None = Field(
        default=None,
        description="Seconds to the end at the present rate; only for a length in steps.",
    )
    late_percentage: int | None = Field(
        default=None,
        description=(
            "How much of what the learners' present processes have trained came too late for a"
            " merge, in percent. Above 10, the condition Progressing says what to do."
        ),
    )
    metrics: list[Metric] | None = Field(
        default=None, description="What the evaluator measured last."
    )


class Failure(Shown):
    """How the job stood when it failed; a change of it lets a failed job try again."""

    generation: int = Field(description="The metadata.generation with which the job failed.")
    retry: str = Field(
        default="", description="The value of the annotation atoll.dev/retry at that time."
    )


class Status(Shown):
    """What is seen of the job; what cannot be seen now is absent."""

    learners_desired: int | None = Field(
        default=None, description="Learners of all regions that the job should have."
    )
    quorum: int | None = Field(
        default=None,
        description=(
            "Learners that must be in training for merges to continue: spec.sync.quorum or its"
            " default; 1 where learners wait for each other."
        ),
    )
    columns: Columns | None = Field(
        default=None, description="Texts for the columns of kubectl get."
    )
    regions: list[RegionStatus] | None = Field(
        default=None, description="What is seen of each region."
    )
    syncer: SyncerStatus | None = Field(default=None, description="What is seen of the shards.")
    run: str | None = Field(
        default=None,
        description=(
            "Random id of the training. It stays the same for the life of the job, unless a failed"
            " job that has kept nothing starts over."
        ),
    )
    learners_live: int | None = Field(
        default=None, description="Learners in training; absent while the syncer is silent."
    )
    progress: Progress | None = Field(
        default=None, description="How far the training is; absent while a shard is silent."
    )
    start_time: str | None = Field(
        default=None,
        description="When the job was started, or resumed after a suspension.",
        json_schema_extra={"format": "date-time"},
    )
    completion_time: str | None = Field(
        default=None,
        description="When the job became Complete or Failed.",
        json_schema_extra={"format": "date-time"},
    )
    failure: Failure | None = Field(
        default=None, description="How the job stood when it failed; absent: it has not."
    )
    export_url: str | None = Field(
        default=None,
        alias="exportURL",
        description="Where the final model is, once the job is Complete.",
    )
    observed_generation: int | None = Field(
        default=None, description="The metadata.generation that this status describes."
    )
    conditions: list[Condition] | None = Field(
        default=None,
        description=(
            "What holds for the job: all types from the first pass. docs/conditions.md lists"
            " every reason and its remedy."
        ),
    )

    @classmethod
    def read(cls, raw: Mapping[str, Any] | None) -> Self:
        """A status as the API server or status.json has it; None is an empty one.

        Whoever may write it may spoil it: a field that cannot be read counts as absent.
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
        """The condition of a type, when it is True."""
        for each in self.conditions or []:
            if each.type == kind and each.status == TRUE:
                return each
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one status is made from. `replies` are at most 15 s old, None where there is none."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    asked_at: str  # RFC 3339, when the replies came
    ready: Mapping[str, int] = field(default_factory=dict)  # pods, by region that is served here
    replaced: Mapping[str, int] = field(default_factory=dict)  # pods, by region
    endpoints: Sequence[str] | None = None  # of shards that are exposed, once all are known
    idle: bool = False  # nothing runs, and nothing should run


def training(replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """The slots in training, as the registrar says; None when it cannot be asked."""
    registrar = replies[0] if replies else None
    if registrar is None:
        return None
    return [slot for slot in registrar.slots if slot.state == pb.SLOT_TRAINING]


def listed(job: Job, replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """Those in training that the manifest here has; None when the registrar cannot be asked."""
    live, slots = training(replies), job.spec.slots
    return None if live is None else [each for each in live if each.slot in slots]


def unlisted(job: Job, replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """Those in training that the manifest of the syncer's cluster, this one, does not have."""
    slots = job.spec.slots
    return tuple(
        f"{each.slot} trains, and is not in this manifest: it is shut out 90 s after it came, or"
        " after it was taken out"
        for each in training(replies) or ()
        if each.slot not in slots
    )


def missing(job: Job, replies: Sequence[pb.StatusReply | None]) -> tuple[str, ...]:
    """The job's slots that are not in training; none when the registrar cannot be asked."""
    live = training(replies)
    if live is None:
        return ()
    present = {each.slot for each in live}
    return tuple(slot for slot in job.spec.slots if slot not in present)


def without_step(job: Job, registrar: pb.StatusReply) -> tuple[str, ...]:
    """The job's slots that have made no step in the whole run, when its end is told.

    Nothing is said of a run whose registrar has been started again: it knows only who has joined
    since.
    """
    if registrar.epoch > 1:
        return ()
    made = {each.slot for each in registrar.slots if each.tokens or each.step_seconds}
    return tuple(slot for slot in job.spec.slots if slot not in made)


def of(view: View) -> Status:
    """All but conditions, times and generation."""
    spec = view.job.spec
    live = listed(view.job, view.replies)
    if live is None and view.idle:
        live = []
    shards = spec.syncer.shards
    ready = sum(reply is not None and reply.state in SERVING for reply in view.replies)
    progress = _progress(view, live)
    runs = [reply.run for reply in view.replies if reply is not None and reply.run]
    return Status(
        learners_desired=spec.learners,
        quorum=spec.learners_needed,
        columns=Columns(
            learners=f"{'?' if live is None else len(live)}/{spec.learners}",
            syncer=f"{ready}/{shards}",
            progress=f"{progress.progress_percentage}%" if progress else None,
        ),
        regions=[_region(view, region.name, region.learners, live) for region in spec.regions],
        syncer=SyncerStatus(
            shards=shards,
            ready=ready,
            epochs=[reply.epoch if reply else None for reply in view.replies],
            endpoints=None if view.endpoints is None else list(view.endpoints),
        ),
        run=runs[0] if runs else None,
        learners_live=None if live is None else len(live),
        progress=progress,
    )


def _region(
    view: View, name: str, learners: int, live: Sequence[pb.SlotStatus] | None
) -> RegionStatus:
    served = name in view.ready
    registrar = view.replies[0] if view.replies else None
    seen = live is not None and registrar is not None
    slots = registrar.slots if registrar is not None else []
    own = {slot_name(name, ordinal) for ordinal in range(learners)}
    here = [slot for slot in slots if slot.slot in own]
    return RegionStatus(
        name=name,
        learners=learners,
        ready=view.ready[name] if served else None,
        replaced=view.replaced.get(name, 0) if served else None,
        live=sum(slot.state == pb.SLOT_TRAINING for slot in here) if seen else None,
        lost=sum(slot.state == pb.SLOT_LOST for slot in here) if seen else None,
    )


def _progress(view: View, live: Sequence[pb.SlotStatus] | None) -> Progress | None:
    known = [reply for reply in view.replies if reply is not None]
    registrar = view.replies[0] if view.replies else None
    if registrar is None or len(known) < len(view.replies) or live is None:
        return None
    spec = view.job.spec
    step = min(reply.tick for reply in known)
    tokens = registrar.trained
    losses = [slot.loss for slot in live if math.isfinite(slot.loss)]
    done, total = (step, spec.steps) if spec.steps else (tokens, spec.tokens or 1)
    rate = min(reply.ticks_per_second for reply in known)
    timed = bool(spec.steps) and rate > 0
    return Progress(
        step=step,
        tokens=tokens,
        last_updated_time=view.asked_at,
        loss=f"{sum(losses) / len(losses):.4f}" if losses else None,
        progress_percentage=min(100, 100 * done // total),
        estimated_remaining_seconds=(
            max(0, round(((spec.steps or 0) - step) / rate)) if timed else None
        ),
        late_percentage=round(100 * registrar.late_share),
        metrics=_metrics(registrar),
    )


def _metrics(registrar: pb.StatusReply) -> list[Metric] | None:
    if not registrar.HasField("evaluation"):
        return None
    return [
        Metric(name="outer_loss", value=f"{registrar.evaluation.loss:.4f}"),
        Metric(name="outer_loss_step", value=str(registrar.evaluation.tick)),
    ]
