"""A shard's streams: who may open them and how many, and what an error in them does."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.channels import LANE_METADATA, SECRET_METADATA, SESSION_METADATA
from atoll_protos.frames import Kind, decode_frame, transfer_frames
from atoll_protos.layout import TensorSpec, build_layout
from atoll_protos.parts import part_spans, span_bytes
from atoll_protos.run import first_difference, hash_of
from atoll_syncer.numbers.values import Payload
from atoll_syncer.port import Lane, SessionPort
from atoll_syncer.service import SyncerService
from unit.syncer.shard_side import begun


class BugError(Exception):
    """What the rules must not raise."""


class Context:
    """The server's side of one stream, which gives these messages and then ends."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [*messages, grpc.aio.EOF]

    async def read(self) -> Any:
        return self.messages.pop(0)

    async def write(self, message: Any) -> None:
        del message


def rules(raising: str) -> SimpleNamespace:
    """A shard whose input of this name raises."""

    def answer(*_: Any) -> list[Any]:
        return []

    def fail(*_: Any) -> list[Any]:
        raise BugError(raising)

    names = ("session_opened", "message", "session_closed")
    return SimpleNamespace(**{name: fail if name == raising else answer for name in names})


@pytest.mark.parametrize("raising", ["session_opened", "message", "session_closed"])
def test_an_exception_in_a_sessions_handler_ends_the_process(raising: str) -> None:
    failures: list[BaseException] = []
    shard = rules(raising)
    driver: Any = SimpleNamespace(
        ports={},
        machine=SimpleNamespace(new_secret=str),
        shard=shard,
        now=lambda: 0.0,
        feed=list,
        failed=failures.append,
        session_closed=shard.session_closed,
    )
    context = Context(pb.ToShard(join=pb.Join(slot="a-0")), pb.ToShard(report=pb.Report()))

    async def scenario() -> None:
        await SyncerService(driver).Session(None, context)

    if raising == "message":  # in the task that reads
        asyncio.run(scenario())
    else:
        with pytest.raises(BugError):
            asyncio.run(scenario())
    assert [type(each) for each in failures] == [BugError]


# ------------------------------------------------------------ bulk streams


class AbortedError(Exception):
    """A call that the shard refused."""


class BulkContext(Context):
    """A Bulk call with this metadata; what it sends is followed by silence."""

    def __init__(self, session: str, secret: str, *frames: Any) -> None:
        super().__init__(*frames)
        self.messages.pop()
        self.metadata: tuple[tuple[str, str], ...] = (
            (SESSION_METADATA, session),
            (SECRET_METADATA, secret),
        )

    def invocation_metadata(self) -> Any:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)

    async def read(self) -> Any:
        if not self.messages:
            await asyncio.Event().wait()
        return await super().read()


def serving(**shard: Any) -> tuple[SyncerService, Any]:
    """A service with session 7, and its port."""
    port = SessionPort("secret of 7")
    rules = SimpleNamespace(sessions={7: SimpleNamespace(slot="a-0")}, **shard)
    driver: Any = SimpleNamespace(
        ports={7: port}, shard=rules, now=lambda: 0.0, feed=lambda effects: None, accepted={}
    )
    driver.failed = lambda _: None
    driver.recording = SimpleNamespace(received=lambda _: None, sent=lambda _: None)
    return SyncerService(driver), port


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
        asyncio.run(asyncio.wait_for(service.bulk(None, context), 5))
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
        await asyncio.wait([silent], timeout=5.0 if begun else 0.2)
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


def test_a_welcome_carries_the_secret_of_its_session() -> None:
    port = SessionPort("secret of 7")
    port.send(pb.ToLearner(welcome=pb.Welcome(session=7)))
    assert port.control[0].welcome.secret == "secret of 7"


# ------------------------------------------------------------ how many


@pytest.mark.parametrize("kind", ["session", "observer"])
def test_a_join_beyond_the_limit_is_refused_and_no_open_session_ends(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_syncer.service.SESSIONS_MAX", 1 if kind == "session" else 9)
    monkeypatch.setattr("atoll_syncer.service.OBSERVERS_MAX", 1)
    observes = kind == "observer"
    opened = asyncio.Event()

    def session_opened(*_: Any) -> None:
        opened.set()

    service, _ = serving(session_opened=session_opened)
    driver: Any = service.driver
    driver.machine = SimpleNamespace(new_secret=str)
    driver.session_closed = lambda session: None
    join = pb.ToShard(join=pb.Join(slot="a-0", observer=observes))

    async def scenario() -> None:
        first = asyncio.create_task(service.Session(None, BulkContext("", "", join)))
        await opened.wait()
        with pytest.raises(AbortedError) as refused:
            await service.Session(None, BulkContext("", "", join))
        assert refused.value.args[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])
        opened.clear()
        again = asyncio.create_task(service.Session(None, BulkContext("", "", join)))
        await opened.wait()
        again.cancel()
        await asyncio.wait([again])

    asyncio.run(scenario())
    assert (service.open, service.observers) == (0, 0)


# ------------------------------------------------------------ what is published


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


def test_of_unsent_ticks_only_the_newest_waits_rule_24() -> None:
    port = SessionPort("secret")
    port.send(pb.ToLearner(call=pb.Call(slice=1)))
    for tick in (1, 2, 3):
        port.send(pb.ToLearner(tick=pb.Tick(tick=tick)))
    kinds = [each.WhichOneof("kind") for each in port.control]
    assert kinds == ["call", "tick"]
    assert port.control[-1].tick.tick == 3


async def ended_in_time(port: SessionPort) -> None:
    service = SyncerService(SimpleNamespace())  # type: ignore[arg-type]
    await asyncio.wait_for(service._write(port, Context()), 5.0)


def test_an_end_is_the_last_word_of_a_session_rule_5() -> None:
    port = SessionPort("secret")
    port.end(pb.End(code=pb.SUPERSEDED))
    port.send(pb.ToLearner(tick=pb.Tick(tick=1)))
    asyncio.run(ended_in_time(port))
    assert [each.WhichOneof("kind") for each in port.control] == ["tick"]


# ------------------------------------------------------------ what the operator says


def test_the_operators_last_word_on_the_job_is_told_to_whoever_asks_next() -> None:
    one, _ = begun("a-0")
    background = SimpleNamespace(troubles=[])
    driver: Any = SimpleNamespace(
        shard=one.shard,
        now=lambda: one.now,
        recording=SimpleNamespace(bytes_received=0, bytes_sent=0),
        background=background,
    )
    service = SyncerService(driver)

    def ask(**said: Any) -> pb.StatusReply:
        return asyncio.run(service.Status(pb.StatusRequest(**said), None))

    assert ask().intent == pb.INTENT_UNSPECIFIED
    assert ask(intent=pb.INTENT_FAIL, why="too late").intent == pb.INTENT_FAIL
    assert (ask().intent, ask().why) == (pb.INTENT_FAIL, "too late")
    ask(intent=pb.INTENT_RUN)
    assert (ask().intent, ask().why) == (pb.INTENT_RUN, "")


def test_a_status_tells_what_of_the_run_file_must_be_equal() -> None:
    one, _ = begun("a-0")
    driver: Any = SimpleNamespace(
        shard=one.shard, now=lambda: one.now,
        recording=SimpleNamespace(bytes_received=0, bytes_sent=0),
        background=SimpleNamespace(troubles=[]),
    )  # fmt: skip
    reply = asyncio.run(SyncerService(driver).Status(pb.StatusRequest(), None))
    assert first_difference(one.state.run_file, reply.must_equal) is None
    assert hash_of(reply.must_equal) == one.state.run_file.hash
