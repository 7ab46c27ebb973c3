"""Transfers in parts: whole only with all of them, never of two captures, in bounded memory."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import Form
from atoll_protos.transfer.division import part_spans, span_bytes
from atoll_protos.transfer.frames import (
    CHUNK_BYTES,
    FrameError,
    Kind,
    Whole,
    encode_frame,
    transfer_frames,
)
from atoll_protos.transfer.gathering import Gathering

FORM = Form(3, 1500)
BYTES = FORM.byte_count(pb.INT8)


def head(slice_: int, capture: int) -> pb.Transfer:
    return pb.Transfer(offer=pb.Offer(slice=slice_, capture=capture), encoding=pb.INT8)


def payload(number: int) -> bytes:
    return bytes((number * 31 + at) % 251 for at in range(BYTES))


def part(lanes: int, lane: int, number: int, named: pb.Transfer) -> list[bytes]:
    """The frames of one part of a transfer."""
    spans = part_spans(FORM, pb.INT8, lanes)[lane]
    own = pb.Transfer()
    own.CopyFrom(named)
    own.byte_count = span_bytes(spans)
    return list(transfer_frames(number, own, payload(number), spans))


class Receiver:
    """A gathering, and what it asked and completed."""

    def __init__(self, lanes: int, byte_count: int | None = BYTES) -> None:
        self.admitted: list[int] = []
        self.wholes: list[Whole] = []
        self.byte_count = byte_count
        self.gathering = Gathering(lanes, self.admit, self.form)

    def form(self, head: pb.Transfer) -> Form | None:
        return FORM if head.HasField("offer") else None

    def admit(self, head: pb.Transfer) -> int | None:
        self.admitted.append(head.offer.capture)
        return self.byte_count

    def feed(self, lane: int, *frames: bytes) -> None:
        for frame in frames:
            if (whole := self.gathering.feed(lane, frame)) is not None:
                self.wholes.append(whole)

    @property
    def captures(self) -> list[int]:
        return [whole.head.offer.capture for whole in self.wholes]


@given(st.data(), st.integers(1, 5))
@settings(max_examples=60)
def test_in_any_order_a_transfer_is_whole_with_all_its_parts_and_of_one_capture(
    data: st.DataObject, lanes: int
) -> None:
    """Lanes go at their own pace, and may leave out what a newer capture has replaced."""
    count = data.draw(st.integers(1, 6))
    slices = [data.draw(st.integers(0, 1)) for _ in range(count)]
    newer = [slices[n] in slices[n + 1 :] for n in range(count)]
    ways: list[Iterator[tuple[int, bytes]]] = []
    for lane in range(lanes):
        sent = [
            n for n in range(count) if not (newer[n] and lanes > 1 and data.draw(st.booleans()))
        ]
        frames = [(n, f) for n in sent for f in part(lanes, lane, n + 1, head(slices[n], n + 1))]
        ways.append(iter(frames))
    receiver, left = Receiver(lanes), list(range(lanes))
    while left:
        lane = data.draw(st.sampled_from(left))
        one = next(ways[lane], None)
        if one is None:
            left.remove(lane)
            continue
        receiver.feed(lane, one[1])
        assert receiver.gathering.byte_count <= 2 * BYTES  # one whole of each slice
    for whole in receiver.wholes:
        assert whole.payload == payload(whole.head.offer.capture)
        assert whole.head.byte_count == BYTES
    for slice_ in (0, 1):
        of_slice = [w.head.offer.capture for w in receiver.wholes if w.head.offer.slice == slice_]
        assert of_slice == sorted(of_slice)
    newest = [n + 1 for n in range(count) if not newer[n]]
    assert set(newest) <= set(receiver.captures)
    assert len(receiver.admitted) == len(set(receiver.admitted))  # one credit each
    assert not receiver.gathering.byte_count


def test_all_parts_but_one_are_nothing_rule_33() -> None:
    receiver = Receiver(3)
    for lane in (2, 0):
        receiver.feed(lane, *part(3, lane, 1, head(0, 1)))
    assert (receiver.admitted, receiver.captures) == ([1], [])
    assert receiver.gathering.owed(1) == {1}
    receiver.feed(1, *part(3, 1, 1, head(0, 1)))
    assert receiver.captures == [1]
    assert receiver.gathering.owed(1) == set()


def test_a_part_of_a_dropped_capture_that_still_comes_is_thrown_away_rule_33() -> None:
    receiver = Receiver(2)
    older, newer = part(2, 1, 1, head(0, 1)), part(2, 1, 2, head(0, 2))
    receiver.feed(0, *part(2, 0, 1, head(0, 1)))
    receiver.feed(1, older[0])
    receiver.feed(0, *part(2, 0, 2, head(0, 2)))
    receiver.feed(1, *older[1:])
    assert receiver.captures == []
    receiver.feed(1, *newer)
    assert [whole.payload for whole in receiver.wholes] == [payload(2)]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (part(2, 1, 1, head(0, 2)), "transfer 1 has another head on other lanes"),
        (part(2, 0, 1, head(0, 1)), "bytes, the layout says"),
        (part(1, 0, 1, head(0, 1)), "bytes, the layout says"),
        (part(2, 1, 1, head(0, 1))[:1] + part(2, 1, 1, head(0, 1))[-1:], "the next one is 0"),
    ],
    ids=["another capture", "the part of another lane", "the whole", "cut short"],
)
def test_a_part_that_is_not_the_lanes_part_of_the_transfer_ends_the_session(
    frames: list[bytes], reason: str
) -> None:
    receiver = Receiver(2)
    receiver.feed(0, *part(2, 0, 1, head(0, 1)))
    with pytest.raises(FrameError, match=reason):
        receiver.feed(1, *frames)
    assert receiver.captures == []


def test_numbers_grow_on_a_lane_and_a_dropped_part_needs_a_known_encoding() -> None:
    receiver, unknown = Receiver(2), head(0, 1)
    unknown.encoding = pb.ENCODING_UNSPECIFIED
    receiver.feed(0, *part(2, 0, 2, head(0, 1)))
    for number in (2, 1):
        with pytest.raises(FrameError, match="numbers must grow"):
            receiver.feed(0, part(2, 0, number, head(0, 1))[0])
    with pytest.raises(FrameError, match="encoding 0 is unknown"):
        receiver.feed(1, part(2, 1, 1, unknown)[0])


def test_what_is_refused_or_has_the_wrong_size_takes_no_memory_rule_25() -> None:
    refused = Receiver(2, byte_count=None)
    with pytest.raises(FrameError, match="not asked for"):
        refused.feed(0, *part(2, 0, 1, head(0, 1)))
    wrong = Receiver(1)
    with pytest.raises(FrameError, match="the layout says"):
        wrong.feed(0, *part(2, 0, 1, head(0, 1)))
    assert not refused.gathering.byte_count
    assert not wrong.gathering.byte_count


def test_what_is_of_no_slice_goes_over_lane_0_alone() -> None:
    companion = pb.Transfer(companion=pb.Companion(), byte_count=8)
    receiver = Receiver(2, byte_count=8)
    receiver.feed(0, *transfer_frames(1, companion, b"12345678"))
    assert [bytes(whole.payload) for whole in receiver.wholes] == [b"12345678"]
    receiver.feed(0, next(transfer_frames(2, companion, b"12345678")))
    for number in (1, 2, 3):  # of one that is over, of that under way, of another one
        other = Receiver(2, byte_count=8)
        other.feed(0, next(transfer_frames(2, companion, b"12345678")))
        with pytest.raises(FrameError, match="goes over lane 0"):
            other.feed(1, next(transfer_frames(number, companion, b"12345678")))


@given(st.integers(1, 40), st.integers(1, 4))
def test_chunks_may_be_cut_anywhere(size: int, lanes: int) -> None:
    receiver = Receiver(lanes)
    for lane in range(lanes):
        frames = part(lanes, lane, 1, head(0, 1))
        data = b"".join(bytes(frame[32:]) for frame in frames[1:-1])
        chunks = range(0, len(data), size * 16)
        receiver.feed(lane, frames[0])
        for at in chunks:
            chunk = data[at : at + size * 16]
            receiver.feed(lane, encode_frame(Kind.CHUNK, 1, at, chunk))
        receiver.feed(lane, frames[-1])
    assert [whole.payload for whole in receiver.wholes] == [payload(1)]


def test_the_spans_of_a_part_are_sent_in_chunks_of_the_usual_size() -> None:
    data = bytes(3 * CHUNK_BYTES)
    spans = (range(1, 4), range(10, 10 + CHUNK_BYTES + 1))
    named = pb.Transfer(byte_count=CHUNK_BYTES + 4)
    lengths = [len(frame) - 32 for frame in transfer_frames(1, named, data, spans)][1:-1]
    assert lengths == [3, CHUNK_BYTES, 1]
