"""The status of a job under either executor: progress and counts as the shards see them; pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.conditions import SERVING
from atoll_operator.api.spec import Job
from atoll_protos.names import split_slot


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one status is made from. `replies` are at most 15 s old, None where there is none."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    asked_at: str  # RFC 3339, when the replies came
    ready: Mapping[str, int] = field(default_factory=dict)  # pods, by region that is served here
    replaced: Mapping[str, int] = field(default_factory=dict)  # pods, by region
    idle: bool = False  # nothing runs, and nothing is to


def training(replies: Sequence[pb.StatusReply | None]) -> list[pb.SlotStatus] | None:
    """The slots in training, as the registrar says; None when it cannot be asked."""
    registrar = replies[0] if replies else None
    if registrar is None:
        return None
    return [slot for slot in registrar.slots if slot.state == pb.SLOT_TRAINING]


def body(view: View) -> dict[str, Any]:
    """All but conditions, times and generation. What cannot be seen is absent."""
    spec = view.job.spec
    live = training(view.replies)
    if live is None and view.idle:
        live = []
    shards = spec.syncer.shards
    ready = sum(reply is not None and reply.state in SERVING for reply in view.replies)
    found: dict[str, Any] = {
        "learnersDesired": spec.learners,
        "quorum": spec.sync.quorum,
        "columns": {
            "learners": f"{'?' if live is None else len(live)}/{spec.learners}",
            "syncer": f"{ready}/{shards}",
        },
        "regions": [_region(view, region.name, region.learners, live) for region in spec.regions],
        "syncer": {
            "shards": shards,
            "ready": ready,
            "epochs": [reply.epoch if reply else None for reply in view.replies],
        },
    }
    runs = [reply.run for reply in view.replies if reply is not None and reply.run]
    if runs:
        found["run"] = runs[0]
    if live is not None:
        found["learnersLive"] = len(live)
    progress = _progress(view, live)
    if progress:
        found["progress"] = progress
        percent = progress.get("progressPercentage")
        found["columns"]["progress"] = "" if percent is None else f"{percent}%"
    return found


def _region(
    view: View, name: str, learners: int, live: Sequence[pb.SlotStatus] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "learners": learners}
    if name in view.ready:
        found["ready"] = view.ready[name]
        found["replaced"] = view.replaced.get(name, 0)
    registrar = view.replies[0] if view.replies else None
    if live is not None and registrar is not None:
        found["live"] = sum(split_slot(slot.slot)[0] == name for slot in live)
        found["lost"] = sum(
            slot.state == pb.SLOT_LOST and split_slot(slot.slot)[0] == name
            for slot in registrar.slots
        )
    return found


def _progress(view: View, live: Sequence[pb.SlotStatus] | None) -> dict[str, Any]:
    known = [reply for reply in view.replies if reply is not None]
    registrar = view.replies[0] if view.replies else None
    if registrar is None or len(known) < len(view.replies) or live is None:
        return {}
    spec = view.job.spec
    step = min(reply.tick for reply in known)
    tokens = sum(slot.tokens for slot in registrar.slots)
    losses = [slot.loss for slot in live if math.isfinite(slot.loss)]
    found: dict[str, Any] = {"step": step, "tokens": tokens, "lastUpdatedTime": view.asked_at}
    if losses:
        found["loss"] = f"{sum(losses) / len(losses):.4f}"
    done, total = (step, spec.steps) if spec.steps else (tokens, spec.tokens or 1)
    found["progressPercentage"] = min(100, 100 * done // total)
    rate = min(reply.ticks_per_second for reply in known)
    if spec.steps and rate > 0:
        found["estimatedRemainingSeconds"] = max(0, round((spec.steps - step) / rate))
    if registrar.HasField("evaluation"):
        loss = f"{registrar.evaluation.loss:.4f}"
        found["metrics"] = [
            {"name": "outer_loss", "value": loss},
            {"name": "outer_loss_step", "value": str(registrar.evaluation.tick)},
        ]
    return found
