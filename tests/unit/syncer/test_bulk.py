"""Bulk streams: who may open one, and what an error, silence or a missing lane on it does."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.network.channels import LANE_METADATA
from atoll_protos.network.credentials import Identity, Role
from atoll_protos.transfer.frames import decode_frame, transfer_frames
from atoll_syncer.duties.recording import LinkEnd
from atoll_syncer.edges.service import SyncerService
from atoll_syncer.numbers.values import Payload
from unit.syncer.service_side import AbortedError, BulkContext, running, serving


def stream(*frames: Any, lane: int | str | None = None) -> BulkContext:
    """A bulk stream of session 7."""
    context = BulkContext("7", "secret of 7", *frames)
    if lane is not None:
        context.metadata = (*context.metadata, (LANE_METADATA, str(lane)))
    return context


@pytest.mark.parametrize(
    ("session", "secret", "code"),
    [
        ("7", "", grpc.StatusCode.PERMISSION_DENIED),
        ("7", "secret of 8", grpc.StatusCode.PERMISSION_DENIED),
        ("8", "secret of 7", grpc.StatusCode.NOT_FOUND),
        ("", "secret of 7", grpc.StatusCode.NOT_FOUND),
        ("x" * 5000, "", grpc.StatusCode.NOT_FOUND),
        ("9" * 5000, "", grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_only_who_knows_the_secret_of_a_session_opens_its_bulk_stream_rule_24(
    session: str, secret: str, code: grpc.StatusCode
) -> None:
    service, port = serving()
    with pytest.raises(AbortedError) as refused:
        await service.bulk(None, BulkContext(session, secret))
    assert refused.value.args[0] == code
    assert not port.streams


@pytest.mark.parametrize("lane", [1, -1, "x", "9" * 500])
async def test_a_session_has_no_lane_that_its_join_has_not_asked_for_rule_34(
    lane: int | str,
) -> None:
    service, _ = serving()
    with pytest.raises(AbortedError) as refused:
        await service.bulk(None, stream(lane=lane))
    assert refused.value.args[0] == grpc.StatusCode.NOT_FOUND


async def test_a_session_has_one_bulk_stream_and_its_end_ends_the_session_rule_24() -> None:
    service, port = serving()
    async with running(service.bulk(None, stream())):
        await asyncio.sleep(0)
        with pytest.raises(AbortedError) as refused:
            await service.bulk(None, stream())
        assert refused.value.args[0] == grpc.StatusCode.ALREADY_EXISTS
        assert not port.bulk_over.is_set()
    assert port.bulk_over.is_set()


def publishing(publish: pb.Publish, payload: Payload, **session: Any) -> tuple[Any, Any, list[Any]]:
    """A service that has this to publish, its port, and what is asked of its values."""
    asked: list[Any] = []

    def publish_payload(*version: int | None) -> Payload:
        asked.append(version)
        return payload

    service, port = serving(publish=lambda *_: publish, **session)
    service.driver.values = SimpleNamespace(publish_payload=publish_payload)  # type: ignore[assignment]
    return service, port, asked


async def test_what_goes_over_a_stream_counts_for_the_machine_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = Payload(encoding=pb.BF16, data=bytes(8), difference=False)
    service, port, _ = publishing(pb.Publish(version=pb.SliceVersion(slice=3)), payload)
    counted: asyncio.Queue[LinkEnd] = asyncio.Queue()
    monkeypatch.setattr(service.driver.recording, "sent", lambda _, end: counted.put_nowait(end))
    port.peer = Identity(
        namespace="n", job="j", uid="u", region="a", role=Role.LEARNER, machine="house"
    )
    port.publish(3)
    async with running(service.bulk(None, stream())):
        end = await asyncio.wait_for(counted.get(), 60)
    assert end.machine == "house"


async def test_a_writer_that_dies_ends_its_session_with_a_line_in_the_log() -> None:
    payload = Payload(encoding=pb.BF16, data=bytes(8), difference=False)
    service, port, _ = publishing(pb.Publish(version=pb.SliceVersion(slice=3)), payload)
    context = stream()  # its reader goes on waiting

    async def broken(message: Any) -> None:
        raise ConnectionResetError(len(message))

    context.write = broken  # type: ignore[method-assign]
    port.publish(3)
    with structlog.testing.capture_logs() as lines:
        await asyncio.wait_for(service.bulk(None, context), 60)
    assert port.bulk_over.is_set()
    (line,) = [each for each in lines if each["event"] == "bulk stream ended"]
    assert line["session"] == 7
    assert "ConnectionResetError" in line["reason"]


def rejecting(byte_count: int, **service: Any) -> tuple[SyncerService, Any, list[tuple[int, str]]]:
    """A service whose session 7 may send a transfer, its port, and what it rejects."""
    rejected: list[tuple[int, str]] = []

    def transfer_rejected(session: int, reason: str, *_: object) -> list[Any]:
        rejected.append((session, reason))
        return []

    def nothing(*_: object) -> list[Any]:
        return []

    made, port = serving(
        transfer_started=nothing,
        transfer_rejected=transfer_rejected,
        **service,
    )
    made.driver.accepted[7] = byte_count
    return made, port, rejected


async def test_a_transfer_that_does_not_go_on_ends_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, port, rejected = rejecting(8)
    monkeypatch.setattr("atoll_syncer.edges.service.STALLED_SECONDS", 0.05)
    head, chunk, _ = transfer_frames(1, pb.Transfer(byte_count=8), bytes(8))
    async with running(service.bulk(None, stream())) as idle:
        _, pending = await asyncio.wait([idle], timeout=0.2)
        assert pending  # between two transfers a stream may be silent
        assert rejected == []
        port.streams.clear()
        port.incoming = None
        await service.bulk(None, stream(head, chunk))
    ((session, reason),) = rejected
    assert session == 7
    assert "in the middle of a transfer" in reason


@pytest.mark.parametrize("begun", [True, False])
async def test_a_lane_whose_stripe_does_not_come_ends_its_session_rule_34(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one lane that is silent holds a slice for ever; otherwise it may be silent."""
    service, port, rejected = rejecting(2400)
    port.lanes = 2
    monkeypatch.setattr("atoll_syncer.edges.service.STALLED_SECONDS", 0.02)
    head = pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32, byte_count=2400)
    part = list(transfer_frames(1, head, bytes(2400), 2, 0)) if begun else []
    async with (
        running(service.bulk(None, stream(lane=1))) as silent,
        running(service.bulk(None, stream(*part, lane=0))),
    ):
        await asyncio.wait([silent], timeout=60.0 if begun else 0.2)
        assert silent.done() == begun
    assert len(rejected) == begun


async def test_a_version_goes_over_all_lanes_once_they_are_open_rule_34() -> None:
    payload = Payload(encoding=pb.BF16, data=bytes(range(9)), difference=False)
    service, port, asked = publishing(pb.Publish(version=pb.SliceVersion(slice=3)), payload)
    port.lanes, lanes = 2, [stream(lane=0), stream(lane=1)]
    frames: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]
    for context, queue in zip(lanes, frames, strict=True):
        context.write = queue.put  # type: ignore[method-assign,assignment]
    port.publish(3)
    async with running(service.bulk(None, lanes[1])):
        await asyncio.sleep(0)
        assert not asked
        async with running(service.bulk(None, lanes[0])):
            sent = [[decode_frame(await queue.get()) for _ in range(3)] for queue in frames]
    (head, first, _), (other, second, _) = sent
    assert head.payload == other.payload
    assert bytes(first.payload) + bytes(second.payload) == payload.data
    assert len(asked) == 1


@pytest.mark.parametrize("seconds", [0.0, 1_000.0])
async def test_the_streams_of_a_session_that_is_over_end_a_moment_after_its_end_rule_41(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads its End closes them itself; nobody else keeps one, and none carries values."""
    monkeypatch.setattr("atoll_syncer.edges.service.CLOSE_SECONDS", seconds)
    asked: list[int] = []
    service, port = serving(publish=lambda _, fragment: asked.append(fragment))
    async with running(service.bulk(None, stream())) as lane:
        port.publish(0)
        while not asked:  # noqa: ASYNC110 - it is asked in the next step of the loop
            await asyncio.sleep(0)
        port.end(pb.End(code=pb.NOT_ALLOWED))
        port.closed.set()
        await asyncio.wait([lane], timeout=0.2 if seconds else 60.0)
        port.publish(1)
        await asyncio.sleep(0)
        assert lane.done() == (seconds == 0.0)
    assert asked == [0]


@pytest.mark.parametrize(
    ("difference", "held", "named"), [(True, 6, 6), (False, 6, 0), (False, None, 0)]
)
async def test_a_difference_names_the_base_that_it_is_to_rule_17(
    difference: bool, held: int | None, named: int
) -> None:
    version = pb.SliceVersion(slice=2, version=pb.Version(number=7))
    payload = Payload(encoding=pb.INT8, difference=difference, data=bytearray(5))
    known = {} if held is None else {2: held}
    service, port, asked = publishing(pb.Publish(version=version, base=99), payload, held=known)
    frames: asyncio.Queue[Any] = asyncio.Queue()
    context = stream()
    context.write = frames.put  # type: ignore[method-assign,assignment]
    port.publish(2)
    async with running(service.bulk(None, context)):
        head = pb.Transfer.FromString(bytes(decode_frame(await frames.get()).payload))
    assert asked == [(2, 7, held)]
    assert (head.publish.difference, head.publish.base) == (difference, named)


async def test_the_next_transfer_is_not_read_while_the_one_before_is_examined() -> None:
    """Else a shard that is slower than its links holds ever more of them."""
    admitted: list[int] = []
    examined, last = asyncio.Event(), asyncio.Event()

    def started(session: int, head: pb.Transfer, now: float) -> list[Any]:
        admitted.append(head.offer.slice)
        driver.accepted[session] = head.byte_count
        return []

    async def transferred(_: int, head: pb.Transfer, payload: bytearray) -> None:
        await examined.wait()
        if head.offer.slice == 2:
            last.set()

    service, _ = serving(transfer_started=started)
    driver: Any = service.driver
    driver.transferred = transferred
    heads = [pb.Transfer(offer=pb.Offer(slice=n), byte_count=8) for n in range(3)]
    frames = [each for n, head in enumerate(heads) for each in transfer_frames(n, head, bytes(8))]
    async with running(service.bulk(None, stream(*frames))):
        for _ in range(100):  # turns of the loop, in which whatever can be read is read
            await asyncio.sleep(0)
        assert admitted == [0]
        examined.set()
        await asyncio.wait_for(last.wait(), 60)
