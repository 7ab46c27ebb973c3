"""What the shards say, as one view in the shape of the CRD's status."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.conditions import SERVING, STORE_LOST, Facts, Kind, Phase, decide, troubles
from atoll_operator.spec import Job
from atoll_protos.channels import control_options
from atoll_protos.names import split_slot
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CALL_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one look at the shards has shown; `replies` are by shard, None where none came."""

    job: Job
    replies: Sequence[pb.StatusReply | None]
    status: Any
    bytes_per_second: float | None  # bulk bytes, both ways; None while unknown


class Poller:
    """Asks every shard for its Status."""

    def __init__(self, job: Job, ports: Sequence[int]) -> None:
        self.job = job
        self._counted: tuple[float, int] | None = None
        self._stubs: list[Any] = [
            SyncerStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=control_options()))
            for port in ports
        ]

    def poll(self, evaluations: list[Any], now: float) -> Snapshot:
        """One look; `evaluations` are the lines of evaluations.jsonl."""
        replies = self._replies()
        counted = sum(reply.bytes_received + reply.bytes_sent for reply in replies if reply)
        before, self._counted = self._counted, (now, counted)
        rate = None
        if before is not None and now > before[0] and counted >= before[1] and all(replies):
            rate = (counted - before[1]) / (now - before[0])
        return Snapshot(
            job=self.job,
            replies=replies,
            status=status(self.job, replies, evaluations),
            bytes_per_second=rate,
        )

    def _replies(self) -> list[pb.StatusReply | None]:
        replies: list[pb.StatusReply | None] = []
        for stub in self._stubs:
            try:
                replies.append(stub.Status(pb.StatusRequest(), timeout=CALL_SECONDS_MAX))
            except grpc.RpcError:
                replies.append(None)
        return replies


def status(job: Job, replies: Sequence[pb.StatusReply | None], evaluations: list[Any]) -> Any:
    """The CRD's status; what cannot be seen is Unknown or absent, never the last value."""
    known = [reply for reply in replies if reply is not None]
    registrar = replies[0]
    slots = {slot.slot: slot for slot in registrar.slots} if registrar else {}
    training = [slot for slot in slots.values() if slot.state == "Training"]
    losses = [slot.loss for slot in training if math.isfinite(slot.loss)]
    step = min((reply.tick for reply in known), default=0) if len(known) == len(replies) else None
    total = job.spec.steps
    rate = min((reply.ticks_per_second for reply in known), default=0.0)
    remaining = (total - step) / rate if total and step is not None and rate > 0 else None
    metrics = [{"name": "outer_loss", "value": f"{each['loss']:.4f}"} for each in evaluations[-1:]]
    return {
        "run": known[0].run if known else "",
        "learnersDesired": job.spec.learners,
        "learnersLive": len(training),
        "quorum": job.spec.sync.quorum,
        "progress": {
            "step": step,
            "tokens": sum(slot.tokens for slot in slots.values()),
            "loss": sum(losses) / len(losses) if losses else None,
            "progressPercentage": min(100, 100 * step // total) if total and step else 0,
            "estimatedRemainingSeconds": None if remaining is None else max(0, round(remaining)),
            "metrics": metrics,
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "regions": [
            {
                "name": region.name,
                "learners": region.learners,
                "live": sum(split_slot(slot.slot)[0] == region.name for slot in training),
            }
            for region in job.spec.regions
        ],
        "syncer": {
            "shards": len(replies),
            "ready": sum(reply.state in SERVING for reply in known),
            "epochs": [reply.epoch if reply else None for reply in replies],
        },
        "conditions": [asdict(each) for each in decide(facts(job, replies, len(training)))],
    }


def facts(job: Job, replies: Sequence[pb.StatusReply | None], live: int) -> Facts:
    """What the conditions are made from; a cluster's troubles cannot be had here."""
    return Facts(
        phase=phase(replies),
        shard_states=tuple(reply.state if reply else None for reply in replies),
        desired=job.spec.learners,
        live=live if replies[0] else None,
        quorum=job.spec.sync.quorum,
        troubles=troubles(replies),
    )


def failed(status: Any, reason: str, message: str) -> Any:
    """The last status of a job that cannot go on."""
    why = Phase(kind=Kind.FAILED, reason=reason, message=message)
    found = decide(Facts(phase=why, shard_states=()))
    return {**status, "conditions": [asdict(each) for each in found]}


def phase(replies: Sequence[pb.StatusReply | None]) -> Phase:
    """Where the job stands, as the shards say."""
    for reply in replies:
        if reply is not None and reply.state == "Failed":
            return Phase(kind=Kind.FAILED, reason=STORE_LOST, message=reply.reason)
    registrar = replies[0]
    if registrar is not None and registrar.state == "Complete":
        message = f"trained to step {registrar.tick}; the model is in export"
        return Phase(kind=Kind.COMPLETE, reason="Trained", message=message)
    return Phase(kind=Kind.RUNNING, reason="Running", message="")


def line(seen: Snapshot) -> str:
    """The whole job in one line."""
    status = seen.status
    current = status["progress"]
    loss = "-" if current["loss"] is None else f"{current['loss']:.3f}"
    held_out = current["metrics"][0]["value"] if current["metrics"] else "-"
    left = current["estimatedRemainingSeconds"]
    grace = max((reply.grace_seconds for reply in seen.replies if reply), default=0.0)
    rate = seen.bytes_per_second
    parts = (
        f"tick {current['step'] or 0} of {seen.job.spec.steps or '?'}",
        f"learners {status['learnersLive']}/{status['learnersDesired']}",
        f"quorum {status['quorum']}",
        f"grace {grace:.2f} s",
        "- MB/s" if rate is None else f"{rate / 1e6:.2f} MB/s",
        f"loss {loss}",
        f"held out {held_out}",
        f"ETA {'-' if left is None else f'{left} s'}",
    )
    return "  ".join(parts)


def json_line(seen: Snapshot) -> str:
    """The status with its time (Unix seconds); `run` is the status' own."""
    return json.dumps({"time": time.time(), **seen.status})


def slot_rows(job: Job, reply: pb.StatusReply | None) -> list[list[str]]:
    """The live table: one row a learner."""
    slots = {slot.slot: slot for slot in reply.slots} if reply else {}
    rows = []
    for region in job.spec.regions:
        for ordinal in range(region.learners):
            name = f"{region.name}-{ordinal}"
            slot = slots.get(name)
            if slot is None:
                rows.append([name, region.name, "Starting", "", "", "", ""])
                continue
            rate = (
                slot.tokens / slot.t_m / slot.step_seconds if slot.t_m and slot.step_seconds else 0
            )
            rows.append(
                [
                    name,
                    region.name,
                    slot.state,
                    str(slot.t_m),
                    f"{rate:,.0f}",
                    f"{slot.loss:.3f}",
                    f"{slot.seconds_since_adoption:.1f} s",
                ]
            )
    return rows
