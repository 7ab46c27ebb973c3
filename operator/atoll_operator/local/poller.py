"""Asks the shards of a run for their status, over gRPC."""

import time
from collections.abc import Sequence
from itertools import zip_longest

import grpc

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.job.spec import Job
from atoll_operator.api.status.job_status import Status
from atoll_operator.local.local_status import NO_REPORTS, ProcessReports, RunSnapshot, status
from atoll_protos.network.channels import control_options, details_of, open_blocking_channel
from atoll_protos.network.credentials import Credentials
from atoll_protos.v1.atoll_pb2_grpc import SyncerStub

CALL_SECONDS_MAX = 2.0
WAIT_SECONDS_MAX = 10.0
REFUSED = grpc.StatusCode.PERMISSION_DENIED


class ShardLinks:
    """Connections to all shards of a job, which are asked one after another."""

    def __init__(self, endpoints: Sequence[str], folder: str = "") -> None:
        """`folder`: of the credentials with which it asks; empty: plain text."""
        self.refusal = ""  # the words of the first shard that has refused the last question
        self._endpoints, self._folder = endpoints, folder
        self._channels = [_channel(endpoint, self._folder) for endpoint in endpoints]
        self._question = pb.StatusRequest()

    def say(self, intent: pb.Intent, why: str = "") -> None:
        """Say with each question from now on what becomes of the job: shards pass it on."""
        self._question = pb.StatusRequest(intent=intent, why=why)

    def ask(self, *, wait: bool = False) -> list[pb.StatusReply | None]:
        """By shard, None where no answer comes in 2 s; with `wait` in 10 s, also of a new one."""
        self.refusal = ""
        return [self._reply(shard, wait) for shard in range(len(self._endpoints))]

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def _reply(self, shard: int, wait: bool) -> pb.StatusReply | None:
        answer = _answer(self._channels[shard], wait, self._question)
        if isinstance(answer, pb.StatusReply):
            return answer
        self.refusal = self.refusal or answer
        # A process that was stopped keeps its connection, and another may serve.
        self._channels[shard].close()
        self._channels[shard] = _channel(self._endpoints[shard], self._folder)
        return None


class Poller:
    """Asks every shard, and says how the run stands."""

    def __init__(self, job: Job, endpoints: Sequence[str], folder: str = "") -> None:
        """`folder`: of the credentials with which it asks; empty: plain text."""
        self.job = job
        self.unaccepted = ""  # why another manifest than the present one is followed
        self._begun: float | None = None
        self._counted: tuple[float, int] | None = None
        self._moved: tuple[int, float] = (-1, 0.0)  # the lowest tick, and since when it is that
        self._known: list[pb.StatusReply | None] = [None] * len(endpoints)  # their last answers
        self._endpoints = endpoints
        self.links = ShardLinks(endpoints, folder)

    def poll(
        self, now: float, ends: ProcessReports = NO_REPORTS, *, wait: bool = False
    ) -> RunSnapshot:
        """Ask all shards; `now` is in monotonic seconds.

        A silent one costs 2 s at most; with `wait` 10 s, also a new one, which may serve by now.
        """
        self._begun = now if self._begun is None else self._begun
        replies = self.links.ask(wait=wait)
        self._known = [new or old for new, old in zip_longest(replies, self._known)]
        counted = sum(reply.bytes_received + reply.bytes_sent for reply in replies if reply)
        before, self._counted = self._counted, (now, counted)
        rate = None
        if before is not None and now > before[0] and counted >= before[1] and all(replies):
            rate = (counted - before[1]) / (now - before[0])
        known = [reply.tick for reply in replies if reply is not None]
        if self._moved[0] < 0 or (len(known) == len(replies) and min(known) != self._moved[0]):
            self._moved = (min(known, default=0), now)
        still_seconds = now - self._moved[1]
        return RunSnapshot(
            job=self.job,
            replies=replies,
            status=status(self.job, replies, utc_now(), ends, still_seconds, self.unaccepted),
            bytes_per_second=rate,
            elapsed_seconds=now - self._begun,
            starting=ends.starting,
            known=self._known,
        )

    def begin_again(self) -> None:
        """All shards are started anew; for how long nothing has moved counts from now on."""
        self._counted, self._moved = None, (-1, 0.0)
        self._known = [None] * len(self._endpoints)

    def resting(self, last: Status, now: float) -> RunSnapshot:
        """Return what is known of a run of which nothing runs; nobody is asked."""
        return RunSnapshot(
            job=self.job,
            replies=[None] * len(self._endpoints),
            status=last,
            bytes_per_second=None,
            elapsed_seconds=now - (now if self._begun is None else self._begun),
            known=self._known,
        )


def _channel(endpoint: str, folder: str) -> grpc.Channel:
    """Not checked: with credentials that have expired no answer comes until they are renewed."""
    credentials = Credentials.read(folder) if folder else None
    return open_blocking_channel(endpoint, control_options(), credentials)


def _answer(channel: grpc.Channel, wait: bool, question: pb.StatusRequest) -> pb.StatusReply | str:
    """Else its words, if it has refused the question: empty, if nothing answers."""
    stub = SyncerStub(channel)
    try:
        seconds = WAIT_SECONDS_MAX if wait else CALL_SECONDS_MAX
        reply: pb.StatusReply = stub.Status(question, timeout=seconds, wait_for_ready=wait)
    except grpc.RpcError as error:
        refused = isinstance(error, grpc.Call) and error.code() is REFUSED
        return details_of(error) if refused else ""
    return reply


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
