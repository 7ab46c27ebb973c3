"""What the shards say, as one view in the shape of the CRD's status."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.conditions import STORE_LOST, Facts, Kind, Phase, decide, troubles
from atoll_operator.api.spec import Job
from atoll_operator.api.status import View, body, training
from atoll_protos.channels import control_options
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

    def poll(self, now: float) -> Snapshot:
        """One look."""
        replies = self._replies()
        counted = sum(reply.bytes_received + reply.bytes_sent for reply in replies if reply)
        before, self._counted = self._counted, (now, counted)
        rate = None
        if before is not None and now > before[0] and counted >= before[1] and all(replies):
            rate = (counted - before[1]) / (now - before[0])
        return Snapshot(
            job=self.job,
            replies=replies,
            status=status(self.job, replies),
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


def status(job: Job, replies: Sequence[pb.StatusReply | None]) -> Any:
    """The CRD's status; what cannot be seen is Unknown or absent, never the last value."""
    asked_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    found = body(View(job=job, replies=replies, asked_at=asked_at))
    return {**found, "conditions": [asdict(each) for each in decide(facts(job, replies))]}


def facts(job: Job, replies: Sequence[pb.StatusReply | None]) -> Facts:
    """What the conditions are made from; a cluster's troubles cannot be had here."""
    live = training(replies)
    return Facts(
        phase=phase(replies),
        shard_states=tuple(reply.state if reply else None for reply in replies),
        desired=job.spec.learners,
        live=None if live is None else len(live),
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
    current = seen.status.get("progress", {})
    left = current.get("estimatedRemainingSeconds")
    grace = max((reply.grace_seconds for reply in seen.replies if reply), default=0.0)
    rate = seen.bytes_per_second
    parts = (
        f"tick {current.get('step', 0)} of {seen.job.spec.steps or '?'}",
        f"learners {seen.status['columns']['learners']}",
        f"quorum {seen.status['quorum']}",
        f"grace {grace:.2f} s",
        "- MB/s" if rate is None else f"{rate / 1e6:.2f} MB/s",
        f"loss {current.get('loss', '-')}",
        f"held out {current['metrics'][0]['value'] if 'metrics' in current else '-'}",
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
