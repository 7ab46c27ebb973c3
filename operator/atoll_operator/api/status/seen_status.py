"""A status of what is seen of a job."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.learner_fields import RegionSpec
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.condition_facts import SERVING, reads
from atoll_operator.api.status.job_status import (
    Columns,
    LinkStatus,
    Metric,
    ProgressStatus,
    RegionStatus,
    Status,
    SyncerStatus,
    TokenCounts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """What one status is made from. `replies` are at most 15 s old, None where there is none."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    asked_at: str  # RFC 3339, when the replies came
    ready: Mapping[str, int] = field(default_factory=dict)  # pods, by region that is served here
    replaced: Mapping[str, int] = field(default_factory=dict)  # pods, by region
    endpoints: Sequence[str] | None = None  # of shards that are exposed, once all are known
    standbys: int | None = None  # shards whose second process waits; None: there is to be none
    idle: bool = False  # nothing runs, and nothing should run


def in_first_step(slot: pb.SlotStatus) -> bool:
    """Whether its process has made no step yet: the first one may compile for minutes."""
    return slot.state in (pb.SLOT_TRAINING, pb.SLOT_STALLED) and not slot.step_seconds


def starts(slot: pb.SlotStatus) -> bool:
    return slot.state == pb.SLOT_JOINING or in_first_step(slot)


def training(replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """The slots that have made a step and train, as the registrar says; None: it is silent."""
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
    """The job's slots that are not in training; none when the registrar cannot be asked."""
    live = training(replies)
    present = {each.slot for each in live or ()}
    return () if live is None else tuple(x for x in job.spec.slots if x not in present)


def without_step(job: Job, registrar: pb.StatusReply) -> tuple[str, ...]:
    """The slots that have made no step in the whole run; none if the registrar began again."""
    made = {each.slot for each in registrar.slots if each.tokens or each.step_seconds}
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
    if _is_complete(view):
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
            standbys=view.standbys,
            epochs=[reply.epoch if reply else 0 for reply in view.replies],
            endpoints=None if view.endpoints is None else list(view.endpoints),
        ),
        run=runs[0] if runs else None,
        checkpoint=_checkpoint(view),
        learners_live=None if live is None else len(live),
        progress=progress,
    )


def _checkpoint(view: SeenJob) -> str | None:
    registrar = view.replies[0] if view.replies else None
    return (registrar.checkpoint or None) if registrar is not None else None


def _is_complete(view: SeenJob) -> bool:
    registrar = view.replies[0] if view.replies else None
    return registrar is not None and registrar.state == pb.SHARD_COMPLETE


def _region(view: SeenJob, region: RegionSpec) -> RegionStatus:
    name, own, served = region.name, set(region.slots), region.name in view.ready
    registrar = view.replies[0] if view.replies else None
    states = [each.state for each in registrar.slots if each.slot in own] if registrar else []
    live = [each for each in training(view.replies) or () if each.slot in own]
    return RegionStatus(
        name=name,
        learners=region.learners,
        ready=view.ready[name] if served else None,
        replaced=view.replaced.get(name, 0) if served else None,
        live=0 if _is_complete(view) else len(live) if registrar else None,
        lost=states.count(pb.SLOT_LOST) if registrar else None,
    )


def _progress(view: SeenJob, live: Sequence[pb.SlotStatus] | None) -> ProgressStatus | None:
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
