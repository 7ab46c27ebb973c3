"""Whatever bytes a peer sends: they are refused in words, and take as little memory as the layout.

unit/syncer/test_fuzz.py has whole conversations; here the bytes of messages and frames are changed.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import pytest
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.errors import SpecError
from atoll_protos.job.layout import DIMENSIONS_MAX, from_model
from atoll_protos.names import COUNTER_MAX, PROTOCOL
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.frames import (
    FrameError,
    Kind,
    encode_frame,
    transfer_frames,
)
from atoll_protos.transfer.gathering import Gathering
from atoll_syncer.model.log import Trained
from atoll_syncer.model.roster import PLAIN_TEXT
from atoll_syncer.rules.status import status
from unit.hostile.mutated import Target, check_short, mutated_bytes
from unit.syncer.peer_side import messages
from unit.syncer.shard_side import RUN, layout_of, run_file, side
from unit.syncer.test_fuzz import JOIN, STEPS, nothing_is_broken, training

SPARE_BYTES: Final = 8 << 20  # beside what the layout asks for: of the reader itself


@contextmanager
def at_most(byte_count: int) -> Iterator[None]:
    """No more memory than this is taken meanwhile, at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < byte_count
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------ control messages


def said() -> list[bytes]:
    """What an honest learner says, as bytes."""
    report = pb.Report(
        t_m=9,
        step_seconds=1.0,
        tokens=90,
        training=True,
        epochs_seen=[1],
        slices=[
            pb.SliceProgress(slice=n, since=pb.Counters(steps=2, tokens=20), held=1)
            for n in range(2)
        ],
    )
    each = (
        pb.ToShard(report=report),
        pb.ToShard(leave=pb.Leave(reason="done")),
        pb.ToShard(model=layout_of(1).to_model()),
        pb.ToShard(evaluation=pb.Evaluation(tick=3, tokens=4)),
    )
    return [message.SerializeToString() for message in each]


def joins() -> list[bytes]:
    join = pb.Join(slot="b-0", uid="u", instance="liar", protocol=PROTOCOL)
    join.MergeFrom(pb.Join(**dict[str, Any](JOIN)))
    join.run_hash = run_file(steps=STEPS).hash
    return [join.SerializeToString()]


def parsed(kind: Any, data: bytes) -> Any:
    """None: gRPC refuses it."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def take_message(data: bytes) -> None:
    message = parsed(pb.ToShard, data)
    one = training()
    session = one.join("b-0", instance="liar", run=RUN)
    if message is not None:
        one.feed(one.shard.message(session, message, one.now))
    nothing_is_broken(one)
    one.wait(2)
    nothing_is_broken(one)


def take_join(data: bytes) -> None:
    join = parsed(pb.Join, data)
    one = training()
    if join is not None:
        one.instances[77] = join.instance
        one.feed(one.shard.session_opened(77, join, one.now, PLAIN_TEXT))
    nothing_is_broken(one)
    one.wait(2)
    nothing_is_broken(one)


def take_model(model: pb.Model) -> None:
    job = run_file()
    with at_most(SPARE_BYTES):
        try:
            layout = from_model(model, job.layout)
        except SpecError:
            return
    assert layout.digest == model.layout_digest


@st.composite
def models(draw: Any) -> pb.Model:
    sizes = st.sampled_from((1, 2, 8, 0, 2**20, 2**41, 2**63, 2**64 - 1))
    shapes = st.one_of(
        st.lists(sizes, max_size=4),
        st.integers(0, 20_000).map(lambda n: [1] * n),
        st.just([2**63] * 5_000),
    )
    words = st.sampled_from(("rda", "mean", "average", "", "x" * 600))
    types = st.sampled_from(("float32", "bfloat16", "float16", "int8", ""))
    tensors = [
        pb.Tensor(name=name, shape=draw(shapes), dtype=draw(types), merge=draw(words))
        for name in draw(st.lists(st.sampled_from(("a", "b", "c", "")), max_size=4))
    ]
    model = pb.Model(tensors=tensors, layout_digest="x")
    if draw(st.booleans()):
        model = draw(mutated_bytes([layout_of(1).to_model().SerializeToString()]).map(model_of))
    return model


def model_of(data: bytes) -> pb.Model:
    return parsed(pb.Model, data) or pb.Model()


# ------------------------------------------------------------ frames


ELEMENTS: Final = 3000
FORM: Final = Form(7, ELEMENTS)
LANES: Final = 2
Stream = tuple[int, pb.Encoding, list[tuple[int, bytes]]]


@cache
def frames(lane: int, lanes: int, encoding: pb.Encoding) -> tuple[bytes, ...]:
    """A transfer's part on a lane."""
    size = FORM.byte_count(encoding)
    head = pb.Transfer(offer=pb.Offer(slice=0, base=3), encoding=encoding)
    head.byte_count = size
    data = bytes(n % 251 for n in range(size))
    return tuple(transfer_frames(5, head, data, lanes, lane))


@st.composite
def streams(draw: Any) -> Stream:
    """Lane by lane the frames of some transfers, of which some are changed, gone or doubled."""
    lanes, encoding = draw(st.integers(1, LANES)), draw(st.sampled_from((pb.BF16, pb.INT2)))
    sent = []
    for lane in range(lanes):
        for frame in frames(lane, lanes, encoding):
            match draw(st.sampled_from(("as it is",) * 6 + ("changed", "gone", "twice"))):
                case "as it is":
                    sent.append((lane, frame))
                case "changed":
                    sent.append((lane, draw(mutated_bytes([frame]))))
                case "twice":
                    sent += [(lane, frame)] * 2
    head = draw(messages(pb.Transfer))
    if draw(st.booleans()):
        extra = list(transfer_frames(6, pb.Transfer(byte_count=0), b""))
        head.byte_count = draw(st.sampled_from((0, 1, 1 << 40, (1 << 64) - 1)))
        extra[0] = encode_frame(Kind.HEAD, 6, 0, head.SerializeToString())
        at = draw(st.integers(0, len(sent)))
        sent[at:at] = [(draw(st.integers(0, lanes - 1)), each) for each in extra]
    return lanes, encoding, sent


def take_frames(stream: Stream) -> None:
    lanes, encoding, sent = stream
    size = FORM.byte_count(encoding)

    def admit(head: pb.Transfer) -> int | None:
        return size if head.HasField("offer") and head.encoding == encoding else None

    gathering = Gathering(lanes, admit)
    with at_most(size * len(sent) + SPARE_BYTES):
        for lane, frame in sent:
            try:
                whole = gathering.feed(lane, frame)
            except FrameError:
                return
            if whole is not None:
                assert bytes(whole.payload) == bytes(n % 251 for n in range(size))


TARGETS: Final[dict[str, Target]] = {
    "message": (mutated_bytes(said()), take_message),
    "join": (mutated_bytes(joins()), take_join),
    "model": (models(), take_model),
    "frames": (streams(), take_frames),
}


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_sent_is_taken_or_refused(target: str) -> None:
    check_short(TARGETS[target], 40)


# ------------------------------------------------------------ what was found


@pytest.mark.parametrize("shape", [[1] * 5_000, [2**63] * 5_000])
def test_a_tensor_of_too_many_dimensions_is_refused_before_they_are_multiplied(
    shape: list[int],
) -> None:
    tensor = pb.Tensor(name="t", shape=shape, dtype="float32", merge="mean")
    with pytest.raises(SpecError, match=f"has {DIMENSIONS_MAX + 1} dimensions"):
        from_model(pb.Model(tensors=[tensor]), run_file().layout)


def test_what_many_slots_say_that_they_have_trained_fits_a_message_and_the_log() -> None:
    one = training()
    one.state.history.trained |= {
        f"b-{n}": Trained(incarnation=1, now=COUNTER_MAX) for n in range(4_000)
    }
    other = side(job=one.job, history=one.state.history, fresh=False).start()
    assert status(other.state, other.now).trained == COUNTER_MAX
