"""What is remembered from one look at the shards to the next."""

import socket
import threading
from concurrent import futures

import grpc
import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_operator.api.status.reasons import STALLED_SECONDS
from atoll_operator.local import poller
from atoll_operator.local.poller import Poller
from atoll_protos.network.channels import server_options
from atoll_protos.v1.atoll_pb2_grpc import SyncerServicer, add_SyncerServicer_to_server
from unit.local.test_local_status import job, reply, said


def test_a_step_that_has_not_moved_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Poller(job(), ())
    ticks: list[pb.StatusReply | None] = []
    monkeypatch.setattr(asked.links, "ask", lambda **_: ticks)

    def progressing(now: float, *seen: int | None) -> str:
        ticks[:] = [None if tick is None else reply(tick=tick) for tick in seen]
        return said(asked.poll(now).status.to_object())["Progressing"]

    late = STALLED_SECONDS + 1
    assert progressing(0.0, 40, 50) == "True/Training"
    assert progressing(late, 40, 51) == "False/Stalled"  # the lowest of all shards counts
    assert progressing(late, 41, 51) == "True/Training"
    assert progressing(late + 1, 41, None) == "False/WaitingForSyncer"
    assert progressing(2 * late + 1, 41, 52) == "False/Stalled"  # nothing was seen in between


def test_a_rate_is_of_all_shards_or_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Poller(job(), ())
    replies: list[pb.StatusReply | None] = []
    monkeypatch.setattr(asked.links, "ask", lambda **_: replies)

    def rate(now: float, *counts: int | None) -> float | None:
        replies[:] = [None if n is None else pb.StatusReply(bytes_sent=n) for n in counts]
        return asked.poll(now).bytes_per_second

    assert rate(0.0, 10, 10) is None
    assert rate(2.0, 30, 50) == 30.0
    assert rate(4.0, 90, None) is None
    assert rate(6.0, 1, 2) is None  # a shard that was started again counts from 0


def test_a_shard_that_does_not_answer_is_dialled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped keeps its connections."""
    dialled: list[str] = []

    def dial(endpoint: str, folder: str) -> grpc.Channel:
        assert not folder
        dialled.append(endpoint)
        return grpc.insecure_channel(endpoint)

    monkeypatch.setattr(poller, "_channel", dial)
    monkeypatch.setattr(poller, "CALL_SECONDS_MAX", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        endpoint = f"127.0.0.1:{stopped.getsockname()[1]}"
        asks = poller.Poller(job(), [endpoint])
        assert asks.poll(0.0).replies == asks.poll(1.0).replies == [None]
    assert dialled == [endpoint] * 3


class _Shard(SyncerServicer):
    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:  # noqa: N802 - gRPC's name
        return reply(tick=7)


def test_the_last_look_waits_for_a_shard_that_came_after_the_first_one() -> None:
    """Of a run that was interrupted in its first second, `atoll status` knew no tokens."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    asked = Poller(job(), [f"127.0.0.1:{port}"])
    assert asked.poll(0.0).replies == [None]
    server = grpc.server(futures.ThreadPoolExecutor(1), options=server_options())
    add_SyncerServicer_to_server(_Shard(), server)  # type: ignore[abstract]

    def begin() -> None:
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()

    begins = threading.Timer(0.2, begin)
    begins.start()
    try:
        (found,) = asked.poll(0.0, wait=True).replies
    finally:
        begins.join()
        server.stop(None).wait()
    assert found is not None
    assert found.tick == 7
