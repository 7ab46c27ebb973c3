"""What the shards say, as one view in the shape of the CRD's status."""

import math
import time
from collections.abc import Sequence
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.spec import Job
from atoll_protos.channels import control_options
from atoll_protos.names import split_slot
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CALL_SECONDS_MAX = 2.0


class Poller:
    """Asks every shard for its Status; None where one does not answer."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._stubs: list[Any] = [
            SyncerStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=control_options()))
            for port in ports
        ]

    def poll(self) -> list[pb.StatusReply | None]:
        """One reply a shard."""
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
            "ready": sum(reply.state in ("Serving", "Final", "Complete") for reply in known),
            "epochs": [reply.epoch if reply else None for reply in replies],
        },
        "conditions": conditions(job, replies, len(training)),
    }


def conditions(job: Job, replies: Sequence[pb.StatusReply | None], live: int) -> list[Any]:
    """The conditions that local mode can tell."""
    states = [reply.state if reply else "Unknown" for reply in replies]
    failed = next((reply.reason for reply in replies if reply and reply.state == "Failed"), "")
    serving = all(state in ("Serving", "Final", "Complete") for state in states)
    complete = states[0] == "Complete"
    seen = states[0] != "Unknown"
    enough = live >= job.spec.sync.quorum
    return [
        _condition("SyncerReady", serving, ", ".join(states), seen=seen),
        _condition("LearnersAvailable", enough, f"{live} in training", seen=seen),
        _condition("Progressing", serving and enough and not complete, "", seen=seen),
        _condition("Complete", complete, "", seen=seen),
        _condition("Failed", bool(failed), failed, seen=seen),
    ]


def _condition(kind: str, holds: bool, message: str, *, seen: bool) -> dict[str, str]:
    truth = ("True" if holds else "False") if seen else "Unknown"
    return {"type": kind, "status": truth, "message": message}


def slot_rows(job: Job, reply: pb.StatusReply | None) -> list[list[str]]:
    """The live table: one row a learner."""
    slots = {slot.slot: slot for slot in reply.slots} if reply else {}
    rows = []
    for region in job.spec.regions:
        for ordinal in range(region.learners):
            name = f"{region.name}-{ordinal}"
            slot = slots.get(name)
            if slot is None:
                rows.append([name, "Starting", "", "", "", ""])
                continue
            rate = (
                slot.tokens / slot.t_m / slot.step_seconds if slot.t_m and slot.step_seconds else 0
            )
            rows.append(
                [
                    name,
                    slot.state,
                    str(slot.t_m),
                    f"{rate:,.0f}",
                    f"{slot.loss:.3f}",
                    f"{slot.seconds_since_adoption:.1f} s",
                ]
            )
    return rows
