"""Bulk streams: who may open one, and what an error, silence or a missing lane on it does."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.channels import LANE_METADATA
from atoll_protos.frames import Kind, decode_frame, transfer_frames
from atoll_protos.layout import TensorSpec, build_layout
from atoll_protos.parts import part_spans, span_bytes
from atoll_syncer.numbers.values import Payload
from atoll_syncer.port import Lane, SessionPort
from atoll_syncer.service import SyncerService
from unit.syncer.service_side import AbortedError, BulkContext, serving


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
def test_only_who_knows_the_secret_of_a_session_opens_its_bulk_stream_rule_24(
    session: str, secret: str, code: grpc.StatusCode
) -> None:
    service, port = serving()
    with pytest.raises(AbortedError) as refused:
        asyncio.run(service.bulk(None, BulkContext(session, secret)))
    assert refused.value.args[0] == code
    assert port.lanes[0].task is None


def test_a_session_has_one_bulk_stream_and_its_end_ends_the_session_rule_24() -> None:
    service, port = serving()

    async def scenario() -> None:
        first = asyncio.create_task(service.bulk(None, BulkContext("7", "secret of 7")))
        await asyncio.sleep(0)
        with pytest.raises(AbortedError) as refused:
            await service.bulk(None, BulkContext("7", "secret of 7"))
        assert refused.value.args[0] == grpc.StatusCode.ALREADY_EXISTS
        assert not port.bulk_over.is_set()
        first.cancel()
        await asyncio.wait([first])
        assert port.bulk_over.is_set()

    asyncio.run(scenario())


def test_a_writer_that_dies_ends_its_session_with_a_line_in_the_log() -> None:
    def publish(*_: Any) -> pb.Publish:
        return pb.Publish(version=pb.SliceVersion(slice=3))

    service, port = serving(publish=publish, held_by=lambda *_: None)
    service.driver.values = SimpleNamespace(
        publish_payload=lambda *_: Payload(encoding=pb.BF16, data=bytes(8), difference=False)
    )
    context = BulkContext("7", "secret of 7")  # its reader goes on waiting

    async def broken(message: Any) -> None:
        raise ConnectionResetError(len(message))

    context.write = broken  # type: ignore[method-assign]
    port.publish(3)
    with structlog.testing.capture_logs() as lines:
        asyncio.run(asyncio.wait_for(service.bulk(None, context), 60))
    assert port.bulk_over.is_set()
    (line,) = [each for each in lines if each["event"] == "bulk stream ended"]
    assert line["session"] == 7
    assert "ConnectionResetError" in line["reason"]


def test_a_transfer_that_does_not_go_on_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected: list[tuple[int, str]] = []

    def transfer_rejected(session: int, reason: str, now: float, head: pb.Transfer) -> None:
        del now, head
        rejected.append((session, reason))

    service, port = serving(transfer_started=lambda *_: [], transfer_rejected=transfer_rejected)
    service.driver.accepted[7] = 8
    monkeypatch.setattr("atoll_syncer.bulk.STALLED_SECONDS", 0.05)
    head, chunk, _ = transfer_frames(1, pb.Transfer(byte_count=8), bytes(8))

    async def scenario() -> None:
        idle = asyncio.create_task(service.bulk(None, BulkContext("7", "secret of 7")))
        _, pending = await asyncio.wait([idle], timeout=0.2)
        assert pending  # between two transfers a stream may be silent
        assert rejected == []
        port.lanes[0].task = None
        await service.bulk(None, BulkContext("7", "secret of 7", head, chunk))
        idle.cancel()

    asyncio.run(scenario())
    ((session, reason),) = rejected
    assert session == 7
    assert "in the middle of a transfer" in reason


class LaneContext(BulkContext):
    """One of several lanes."""

    def __init__(self, lane: int, *frames: Any) -> None:
        super().__init__("7", "secret of 7", *frames)
        self.metadata = (*self.metadata, (LANE_METADATA, str(lane)))


@pytest.mark.parametrize("begun", [True, False])
def test_a_lane_whose_part_does_not_come_ends_its_session_rule_34(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one lane that is silent holds a slice for ever; otherwise it may be silent."""
    rejected: list[str] = []

    def transfer_rejected(_: int, reason: str, now: float, head: pb.Transfer | None) -> list[Any]:
        del now, head
        rejected.append(reason)
        return []

    layout = build_layout([TensorSpec(name="t", shape=(600,), dtype="float32", merge="rda")], 1, 1)
    service, port = serving(
        transfer_started=lambda *_: [],
        transfer_rejected=transfer_rejected,
        lane_opened=lambda *_: [],
        layout=layout,
        number=0,
    )
    port.lanes.append(Lane())
    service.driver.accepted[7] = 2400
    monkeypatch.setattr("atoll_syncer.bulk.STALLED_SECONDS", 0.02)
    spans = part_spans(layout.slices[0].form, pb.F32, 2)[0]
    head = pb.Transfer(seed=pb.Seed(slice=0), encoding=pb.F32, byte_count=span_bytes(spans))
    part = list(transfer_frames(1, head, bytes(2400), spans)) if begun else []

    async def scenario() -> None:
        silent = asyncio.create_task(service.bulk(None, LaneContext(1)))
        other = asyncio.create_task(service.bulk(None, LaneContext(0, *part)))
        await asyncio.wait([silent], timeout=60.0 if begun else 0.2)
        assert silent.done() == begun
        for task in (silent, other):
            task.cancel()
        await asyncio.wait([silent, other])

    asyncio.run(scenario())
    assert len(rejected) == begun


def test_a_session_whose_lanes_do_not_come_ends_rule_34(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_syncer.service.LANES_SECONDS_MAX", 0.0)
    port, whole = SessionPort("secret", lanes=3), SessionPort("secret")
    port.lanes[1].task = object()  # type: ignore[assignment]
    port.welcomed.set()
    whole.welcomed.set()
    service = SyncerService(SimpleNamespace())  # type: ignore[arg-type]
    for each in (port, whole):
        asyncio.run(service._lanes_come(each))
    assert port.control[0].end.code == pb.BAD_TRANSFER
    assert "lane 0, 2 of 3" in port.control[0].end.reason
    assert not whole.ended  # whose learner is not waited for, as it cannot train


@pytest.mark.parametrize(
    ("difference", "held", "named"), [(True, 6, 6), (False, 6, 0), (False, None, 0)]
)
def test_a_difference_names_the_base_that_it_is_to_rule_17(
    difference: bool, held: int | None, named: int
) -> None:
    version = pb.SliceVersion(slice=2, version=pb.Version(number=7))
    asked: list[tuple[int, int, int | None]] = []

    def publish_payload(fragment: int, number: int, base: int | None) -> Payload:
        asked.append((fragment, number, base))
        return Payload(encoding=pb.INT8, difference=difference, data=bytearray(5))

    service, port = serving(
        publish=lambda *_: pb.Publish(version=version, base=99), held_by=lambda *_: held
    )
    driver: Any = service.driver
    driver.values = SimpleNamespace(publish_payload=publish_payload)
    frames: list[bytes] = []
    whole = asyncio.Event()

    class Receiver(BulkContext):
        async def write(self, message: Any) -> None:
            frames.append(message)
            if decode_frame(message).kind is Kind.TRAILER:
                whole.set()

    async def scenario() -> None:
        bulk = asyncio.create_task(service.bulk(None, Receiver("7", "secret of 7")))
        port.publish(2)
        await whole.wait()
        bulk.cancel()
        await asyncio.wait([bulk])

    asyncio.run(scenario())
    head = pb.Transfer.FromString(bytes(decode_frame(frames[0]).payload))
    assert asked == [(2, 7, held)]
    assert (head.publish.difference, head.publish.base) == (difference, named)


def test_the_next_transfer_is_not_read_while_the_one_before_is_examined() -> None:
    """Else a shard that is slower than its links holds ever more of them."""
    service, _ = serving(transfer_started=lambda *_: [])
    driver: Any = service.driver
    admitted: list[int] = []

    def started(session: int, head: pb.Transfer, now: float) -> list[Any]:
        del now
        admitted.append(head.offer.slice)
        driver.accepted[session] = head.byte_count
        return []

    driver.shard.transfer_started = started
    examined, last = asyncio.Event(), asyncio.Event()

    async def transferred(_: int, head: pb.Transfer, payload: bytearray) -> None:
        del payload
        await examined.wait()
        if head.offer.slice == 2:
            last.set()

    driver.transferred = transferred
    frames = [
        frame
        for slice_ in range(3)
        for frame in transfer_frames(
            slice_, pb.Transfer(offer=pb.Offer(slice=slice_), byte_count=8), bytes(8)
        )
    ]

    async def scenario() -> None:
        bulk = asyncio.create_task(service.bulk(None, BulkContext("7", "secret of 7", *frames)))
        for _ in range(100):  # turns of the loop, in which whatever can be read is read
            await asyncio.sleep(0)
        assert admitted == [0]
        examined.set()
        await asyncio.wait_for(last.wait(), 60)
        bulk.cancel()
        await asyncio.wait([bulk])

    asyncio.run(scenario())
