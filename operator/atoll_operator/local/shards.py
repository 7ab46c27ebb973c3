"""Asks the shards of a local run for their status, over gRPC on the loopback interface."""

import time
from collections.abc import Sequence
from typing import Any

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.spec import Job
from atoll_operator.local.progress import NO_ENDS, Ends, Snapshot, status
from atoll_protos.channels import control_options
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CALL_SECONDS_MAX = 2.0


class Poller:
    """Asks every shard, one after another; `ports` are by shard."""

    def __init__(self, job: Job, ports: Sequence[int]) -> None:
        self.job = job
        self._begun: float | None = None
        self._counted: tuple[float, int] | None = None
        self._moved: tuple[int, float] = (-1, 0.0)  # the lowest tick, and since when it is that
        self._stubs: list[Any] = [
            SyncerStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=control_options()))
            for port in ports
        ]

    def poll(self, now: float, ends: Ends = NO_ENDS) -> Snapshot:
        """What they say now; `now` is in monotonic seconds. A silent shard costs 2 s at most.

        `ends`: what is known of processes that have ended.
        """
        self._begun = now if self._begun is None else self._begun
        replies = self._replies()
        counted = sum(reply.bytes_received + reply.bytes_sent for reply in replies if reply)
        before, self._counted = self._counted, (now, counted)
        rate = None
        if before is not None and now > before[0] and counted >= before[1] and all(replies):
            rate = (counted - before[1]) / (now - before[0])
        known = [reply.tick for reply in replies if reply is not None]
        if self._moved[0] < 0 or (len(known) == len(replies) and min(known) != self._moved[0]):
            self._moved = (min(known, default=0), now)
        still_seconds = now - self._moved[1]
        return Snapshot(
            job=self.job,
            replies=replies,
            status=status(self.job, replies, utc_now(), ends, still_seconds),
            bytes_per_second=rate,
            elapsed_seconds=now - self._begun,
            starting=ends.starting,
        )

    def _replies(self) -> list[pb.StatusReply | None]:
        replies: list[pb.StatusReply | None] = []
        for stub in self._stubs:
            try:
                replies.append(stub.Status(pb.StatusRequest(), timeout=CALL_SECONDS_MAX))
            except grpc.RpcError:
                replies.append(None)
        return replies


def ask(endpoints: Sequence[str]) -> list[pb.StatusReply | None]:
    """What the shards of a run on this machine say now, once; None where none came."""
    replies: list[pb.StatusReply | None] = []
    for endpoint in endpoints:
        with grpc.insecure_channel(endpoint, options=control_options()) as channel:
            stub: Any = SyncerStub(channel)
            try:
                replies.append(stub.Status(pb.StatusRequest(), timeout=CALL_SECONDS_MAX))
            except grpc.RpcError:
                replies.append(None)
    return replies


def utc_now() -> str:
    """The time in RFC 3339, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
