"""The transport's values: what goes out is the base less the capture that an offer names, whole."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import structlog

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.exits import ExitCode
from atoll_protos.network.channels import LANE_METADATA
from atoll_protos.transfer import arrays
from atoll_protos.transfer.codecs import Form, Wire
from atoll_protos.transfer.frames import FrameError, Whole
from atoll_protos.transfer.gathering import Gathering
from atoll_worker.link.messages import Evaluated, Finished
from atoll_worker.rules.learner_state import (
    Command,
    Connection,
    Effect,
    PlaceValue,
    Promote,
    SendOffer,
    SendSeed,
    TelemetryRecord,
)
from atoll_worker.transport import transport as module
from atoll_worker.transport.carrier import Values
from atoll_worker.transport.control_stream import Bulk, Outgoing, Payload
from atoll_worker.transport.transport import LOOKED_AT_EACH, Telemetry
from atoll_worker.transport_process import until_a_bug
from unit.worker import fixtures
from unit.worker.fake_ends import COUNT, KEY, OFFER, Rig, full

BOUNDARY = replace(fixtures.BOUNDARY, captured=(KEY,))


def test_an_offer_is_the_base_less_the_capture_rule_16() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    outgoing = rig.sent()
    assert outgoing is not None
    head, data = outgoing.head, outgoing.data
    assert (head.offer, head.encoding, head.byte_count) == (OFFER, pb.F32, 4 * COUNT)
    assert arrays.from_bytes(data, pb.F32).tolist() == [3.0] * COUNT
    assert rig.lost == []


@pytest.mark.parametrize("torn", ["being written", "written again", "half a second copy"])
def test_a_capture_that_is_written_while_it_is_read_never_goes_out(torn: str) -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)

    def meanwhile() -> None:
        if torn == "being written":
            rig.memory.turn(*KEY)
        else:
            rig.capture(7.0)
        if torn == "half a second copy":
            rig.memory.turn(*KEY)

    assert rig.sent(meanwhile) is None
    assert rig.lost == [OFFER]


def test_the_lines_of_what_an_offer_counts_are_on_file_before_it_leaves() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    telemetry: Any = rig.transport.telemetry
    rig.transport.feed([TelemetryRecord({"t_m": 1})])
    assert telemetry.waiting
    assert rig.sent() is not None
    assert not telemetry.waiting


def test_an_offer_names_its_own_capture_also_when_the_next_is_announced_meanwhile() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    assert rig.sent(lambda: rig.captured(7.0)) is None
    assert rig.lost == [OFFER]


def test_an_offer_is_to_the_base_that_was_held_when_it_was_due() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)

    async def scenario() -> Outgoing | None:
        rig.transport.feed([SendOffer(0, OFFER)])
        rig.transport.values.bases[KEY] = full(9.0)
        return await rig.client.payloads[0]()

    outgoing = asyncio.run(scenario())
    assert outgoing is not None
    assert arrays.from_bytes(outgoing.data, pb.F32).tolist() == [3.0] * COUNT


def test_tensors_whose_values_are_not_finite_are_named_in_the_log_once() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    said = []
    for value in (2.0, np.nan, np.inf, 2.0):
        rig.captured(value)
        with structlog.testing.capture_logs() as lines:
            outgoing = rig.sent()
        assert outgoing is not None  # the shard counts it as late
        rig.client.payloads.clear()
        said.append([(line["log_level"], line.get("tensors")) for line in lines])
    assert said == [[], [("error", ("t",))], [], [("info", None)]]


def test_a_seed_that_is_not_finite_is_not_sent_and_ends_the_process_with_its_tensor() -> None:
    rig = Rig()
    sent: list[Any] = []
    rig.transport.end.send = sent.append  # type: ignore[method-assign, assignment]

    async def seed() -> list[Outgoing | None]:
        rig.client.payloads.clear()
        rig.transport.feed([SendSeed(0)])
        return [await payload() for payload in rig.client.payloads]

    rig.captured(np.inf)
    assert asyncio.run(seed()) == [None]
    (fail,) = sent
    assert fail.exit_code == ExitCode.BAD_INPUT
    assert fail.reason.startswith("model.t: has values that are not finite, and the job would")
    rig.captured(2.0)
    (outgoing,) = asyncio.run(seed())
    assert outgoing is not None
    region = np.asarray(rig.memory.capture(*KEY))
    assert np.shares_memory(np.asarray(outgoing.data), region), "a seed is no copy of the model"


def test_differences_are_formed_outside_of_the_event_loop() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)
    threads: list[int] = []
    rig.sent(lambda: threads.append(threading.get_ident()))
    assert threads
    assert threading.get_ident() not in threads


async def test_an_offer_of_a_session_that_is_gone_is_forgotten_without_a_word() -> None:
    """Its Call died with the session: a new capture would be an offer without credit."""
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.captured(2.0)

    rig.transport.feed([SendOffer(0, OFFER)])
    rig.capture(7.0)
    await asyncio.gather(*rig.transport.carrier.works)
    assert rig.lost == []


@pytest.mark.parametrize("wire", [Wire.INT8, Wire.INT4])
def test_a_difference_is_decoded_onto_the_base_that_is_held_rule_17(wire: Wire) -> None:
    rig = Rig(wire_down=wire)
    held = np.linspace(-1, 1, COUNT).astype(ml_dtypes.bfloat16)
    rig.transport.values.bases[KEY] = arrays.packed(arrays.byte_view(held), pb.BF16, Form(0, COUNT))
    encoding = pb.INT8 if wire is Wire.INT8 else pb.INT4
    change = np.linspace(0.25, 0.5, COUNT).astype(np.float32)
    data = bytearray(arrays.encode(change, encoding))
    version = pb.SliceVersion(slice=0, version=pb.Version(number=4))
    publish = pb.Publish(version=version, difference=True, base=3)
    rig.transport.exchange.published = lambda *_: []  # type: ignore[method-assign]
    head = pb.Transfer(publish=publish, encoding=encoding, byte_count=len(data))
    asyncio.run(rig.transport.carrier._whole(0, Whole(head, data)))
    decoded = arrays.decode(data, encoding, np.empty(COUNT, np.float32))
    expected = (held.astype(np.float32) + decoded).astype(ml_dtypes.bfloat16)
    assert rig.transport.values.candidates[0, 0, 4].data == expected.tobytes()


@pytest.mark.parametrize(
    ("encoding", "difference", "fits"),
    [
        (pb.BF16, False, True),
        (pb.F32, False, True),  # a last version
        (pb.INT8, True, True),
        (pb.INT8, False, False),
        (pb.F32, True, False),
        (pb.INT4, True, False),
        (pb.INT2, True, False),  # no wire down
        (99, False, False),
    ],
)
def test_a_value_in_another_encoding_than_the_wires_is_not_received_rule_25(
    encoding: Any, difference: bool, fits: bool
) -> None:
    rig = Rig(wire_down=Wire.INT8)
    rig.transport.exchange.publish_started = (  # type: ignore[method-assign]
        lambda *_: True
    )
    publish = pb.Publish(version=pb.SliceVersion(slice=0), difference=difference)
    size = rig.transport.carrier._admit(0, pb.Transfer(publish=publish, encoding=encoding))
    form = Form(0, COUNT)
    assert size == (form.byte_count(encoding) if fits else None)


def test_final_values_are_placed_once_more_from_the_bases() -> None:
    rig = Rig()
    rig.transport.values.bases[KEY] = full(5.0)
    rig.transport.feed([PlaceValue(0, 0, 3)])
    assert rig.memory.adopt(*KEY) == np.full(COUNT, 5.0, np.float32).tobytes()
    rig.transport.values.candidates[0, 0, 4] = full(6.0)
    rig.transport.feed([PlaceValue(0, 0, 4)])
    assert rig.memory.adopt(*KEY) == np.full(COUNT, 6.0, np.float32).tobytes()


def test_the_registrar_hears_whether_the_final_values_were_measured() -> None:
    rig = Rig()
    rig.transport.exchange.state.shards[0].connection = Connection.WELCOMED
    for final in (False, True):
        measured = Evaluated(tick=7, final=final, loss=1.5, tokens=8, seconds=0.1)
        rig.transport._from_training(measured)
    assert [each.evaluation.final for each in rig.client.messages] == [False, True]


def test_a_turn_of_the_loop_copies_one_slice_and_what_follows_keeps_its_order() -> None:
    """At a job's end all slices are placed; a learner that copies for seconds is silent."""
    rig = Rig()
    performed: list[Effect] = []
    rig.transport._perform = performed.append  # type: ignore[method-assign, assignment]
    effects: list[Effect] = [
        TelemetryRecord({"event": "first"}),
        *(PlaceValue(0, fragment, 1) for fragment in range(3)),
        Command(Finished()),
    ]
    later = TelemetryRecord({"event": "fed meanwhile"})

    async def scenario() -> list[int]:
        rig.transport.feed(effects)
        rig.transport.feed([later])
        counts = [len(performed)]
        while len(performed) < len(effects) + 1:
            await asyncio.sleep(0)
            counts.append(len(performed))
        return counts

    assert asyncio.run(scenario()) == [2, 3, 6]
    assert performed == [*effects, later]


def test_each_capture_that_a_boundary_names_counts_its_region_on_by_two() -> None:
    rig = Rig()
    rig.transport.exchange.boundary = lambda *_: []  # type: ignore[method-assign]
    before = rig.transport.values.captures[KEY]
    rig.transport._from_training(BOUNDARY)
    assert rig.transport.values.captures[KEY] == before + 2


@pytest.mark.parametrize("said", ["the same", "others"])
def test_now_and_then_an_adopted_base_is_compared_with_the_digest_of_its_version(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an integer wire each learner computes it; another CPU may round otherwise."""
    rig = Rig()
    transport = rig.transport
    told: list[Any] = []
    monkeypatch.setattr(transport.telemetry, "write", told.append)
    base = full(3.0)
    digest = base.digest if said == "the same" else "of other bits"
    transport.exchange.state.slices[KEY].held = pb.Version(run="r", number=7, digest=digest)

    async def adopt(count: int) -> None:
        for _ in range(count):
            transport.values.candidates[*KEY, 7] = base
            transport.feed([Promote(*KEY, 7)])
        await asyncio.gather(*transport._looks)

    asyncio.run(adopt(LOOKED_AT_EACH - 1))
    with structlog.testing.capture_logs() as before:
        asyncio.run(adopt(1))
    warnings = [line["reason"] for line in told if line["event"] == "warning"]
    assert len(warnings) == len(before) == (said == "others")
    assert all("sync.wire.down" in reason for reason in warnings)


# ------------------------------------------------------------ bugs


@pytest.mark.parametrize("source", ["a message", "a boundary", "a disconnection", "an effect"])
def test_a_bug_in_the_rules_ends_the_transport_with_its_exit_code(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is changed by half goes on with nobody."""
    rig = Rig()
    transport, exchange = rig.transport, rig.transport.exchange

    def bug(*_: Any) -> list[Effect]:
        raise AssertionError("an invariant does not hold")

    monkeypatch.setattr(exchange, "start", lambda now: [])
    for name in ("message", "boundary", "disconnected"):
        monkeypatch.setattr(exchange, name, bug)

    def happens() -> None:
        match source:
            case "a message":
                transport.message(0, pb.ToLearner())
            case "a boundary":
                transport._hear_training(BOUNDARY)
            case "a disconnection":
                transport.disconnected(0, "lost")
            case _:
                monkeypatch.setattr(transport, "_perform", bug)
                transport.feed([SendOffer(0, OFFER)])

    async def scenario() -> int:
        async def code() -> int:
            await transport.run()
            return 0

        running = asyncio.create_task(until_a_bug(code()))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="an invariant"):
            happens()
        return await running

    with structlog.testing.capture_logs() as lines:
        assert asyncio.run(scenario()) == ExitCode.BUG
    assert "a bug ends this process" in [line["event"] for line in lines]


def test_a_bad_transfer_is_no_bug_of_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()

    def bad(*_: Any) -> None:
        raise FrameError("two heads differ")

    monkeypatch.setattr(Values, "arrived", bad)
    with pytest.raises(FrameError):
        asyncio.run(rig.transport.carrier._whole(0, Whole(pb.Transfer(), bytearray())))
    assert not rig.transport.over.is_set()


SIZE = 1003


class Call:
    """A stream of gRPC on which nothing comes; it takes what is written, one at a time."""

    def __init__(self, written: list[bytes]) -> None:
        self.written = written

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        self.written.append(frame)


class Channel:
    """The connections of one session, of which each has one call."""

    def __init__(self) -> None:
        self.lanes: list[list[bytes]] = []
        self.metadata: list[dict[str, str]] = []

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def stream_stream(self, _: str) -> Callable[..., Call]:
        def call(metadata: Any) -> Call:
            self.metadata.append(dict(metadata))
            self.lanes.append([])
            return Call(self.lanes[-1])

        return call


def offer(number: int, data_state: bytes | None = None) -> Outgoing:
    named = pb.Offer(slice=number, data_state=data_state)
    data = bytes((number + at) % 256 for at in range(SIZE))
    return Outgoing(pb.Transfer(offer=named, encoding=pb.INT8, byte_count=SIZE), data)


def sent(lanes: int, *outgoing: Outgoing | None) -> tuple[Channel, list[Whole]]:
    """What a receiver puts together of what a session sends on its lanes."""
    queue: asyncio.Queue[Payload] = asyncio.Queue()
    channel, gathering, wholes = Channel(), Gathering(lanes, lambda _: SIZE), list[Whole]()

    def payload(each: Outgoing | None) -> Payload:
        async def made() -> Outgoing | None:
            return each

        return made

    async def read(lane: int) -> None:
        while len(wholes) < len([*filter(None, outgoing)]):
            await gathering.turn(lane)
            while channel.lanes[lane] and (not gathering.head or gathering.owes(lane)):
                if (whole := gathering.feed(lane, channel.lanes[lane].pop(0))) is not None:
                    wholes.append(whole)
            await asyncio.sleep(0)

    async def scenario() -> None:
        for each in outgoing:
            queue.put_nowait(payload(each))
        bulk = Bulk(
            endpoint="shard:1",
            open_channel=lambda *_: cast(Any, channel),
            session=7,
            secret="s",
            payloads=queue,
            admit=lambda _: None,
            whole=lambda _: asyncio.sleep(0),
            lanes=lanes,
        )
        running = asyncio.create_task(bulk.run())
        while len(channel.lanes) < lanes:  # noqa: ASYNC110 - they open in turns of the loop
            await asyncio.sleep(0)
        await asyncio.gather(*(read(lane) for lane in range(lanes)))
        running.cancel()

    asyncio.run(scenario())
    return channel, wholes


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_what_the_lanes_send_is_put_together_again(lanes: int) -> None:
    outgoing = (offer(1), None, offer(2))
    channel, wholes = sent(lanes, *outgoing)
    assert [bytes(whole.payload) for whole in wholes] == [each.data for each in outgoing if each]
    assert [whole.head for whole in wholes] == [each.head for each in outgoing if each]
    named = [each.get(LANE_METADATA) for each in channel.metadata]
    assert named == ([None] if lanes == 1 else [str(lane) for lane in range(lanes)])


def test_all_lanes_say_the_same_of_the_data_state_of_an_offer_rule_28() -> None:
    _, wholes = sent(3, offer(1, b"state"), offer(2, b"state"), offer(3, b"other"))
    said = [(w.head.offer.data_state, w.head.offer.same_data_state) for w in wholes]
    assert said == [(b"state", False), (b"", True), (b"other", False)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_learner_appends_to_the_file_of_its_slot(tmp_path: Path) -> None:
    for t_m in (1, 2):  # a second process start goes on in the same file
        telemetry = Telemetry(str(tmp_path), "us-east-0")
        telemetry.write({"run": "r", "t_m": t_m})
        telemetry.flush()
    found = lines(tmp_path / "learners" / "us-east-0.jsonl")
    assert [each["t_m"] for each in found] == [1, 2]
    assert all(each["run"] == "r" and each["time"] > 0 for each in found)


def test_what_a_script_logs_at_each_step_is_written_out_as_seldom_as_its_steps(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 1e6)
    telemetry = Telemetry(str(tmp_path), "us-east-0")
    for line in ({"t_m": 1}, {"event": "logged", "tick": 0, "values": {"a": 1.0}}):
        telemetry._flushed_at = time.time()
        telemetry.write(line)
    assert not (tmp_path / "learners").exists()
    telemetry.flush()
    assert len(lines(tmp_path / "learners" / "us-east-0.jsonl")) == 2


def test_an_observer_writes_evaluations_that_can_be_read_at_once(tmp_path: Path) -> None:
    telemetry = Telemetry(str(tmp_path), "")
    telemetry.write({"run": "r", "tick": 0, "loss": 5.5})
    telemetry.write({"run": "r", "tick": 50, "loss": 2.5})
    assert [each["loss"] for each in lines(tmp_path / "evaluations.jsonl")] == [5.5, 2.5]
    telemetry.flush()


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    telemetry = Telemetry("", "us-east-0")
    telemetry.write({"t_m": 1})
    telemetry.flush()
    assert list(tmp_path.iterdir()) == []


def test_lines_for_which_the_disk_has_no_room_are_written_whole_when_it_has(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The transport process ended, and with it the learner."""
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 400)
    (tmp_path / "learners").write_text("no folder")
    telemetry = Telemetry(str(tmp_path), "a-0")
    for number in range(100):
        telemetry.write({"event": "warning", "number": number})
    (tmp_path / "learners").unlink()
    telemetry.flush()
    kept = [line["number"] for line in lines(tmp_path / "learners" / "a-0.jsonl")]
    assert kept == [*range(len(kept))]
    assert 1 < len(kept) < 10
