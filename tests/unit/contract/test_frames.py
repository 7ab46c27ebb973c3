"""Frames: what arrives is what was sent, or a FrameError with a reason; never a wrong payload."""

import random
import struct
import tracemalloc

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.names import DATA_STATE_BYTES_MAX, slot_name
from atoll_protos.network.channels import BULK_BYTES_MAX
from atoll_protos.transfer.frames import (
    CHUNK_BYTES,
    HEAD_BYTES_MAX,
    HEADER,
    Assembler,
    FrameError,
    Kind,
    Whole,
    decode_frame,
    encode_frame,
    transfer_frames,
)


def head(byte_count: int) -> pb.Transfer:
    offer = pb.Offer(slice=3, base=7, capture=5, counters=pb.Counters(steps=5, tokens=640))
    return pb.Transfer(offer=offer, encoding=pb.BF16, byte_count=byte_count)


def frames(payload: bytes, transfer: int = 1) -> list[bytes]:
    return list(transfer_frames(transfer, head(len(payload)), payload))


def small_frames(payload: bytes, chunk: int, transfer: int = 1) -> list[bytes]:
    """As `transfer_frames`, in chunks of another length."""
    whole = frames(payload, transfer)
    parts = range(0, len(payload), chunk)
    chunks = [encode_frame(Kind.CHUNK, transfer, at, payload[at : at + chunk]) for at in parts]
    return [whole[0], *chunks, whole[-1]]


def assembler(byte_count: int | None) -> Assembler:
    return Assembler(lambda _: byte_count)


def assemble(messages: list[bytes], byte_count: int | None) -> list[Whole]:
    into = assembler(byte_count)
    return [whole for message in messages if (whole := into.feed(message)) is not None]


@given(st.binary(max_size=300), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_a_transfer_arrives_as_it_was_sent(payload: bytes, chunk: int, transfer: int) -> None:
    (whole,) = assemble(small_frames(payload, chunk, transfer), len(payload))
    assert whole == Whole(head(len(payload)), bytearray(payload))


@pytest.mark.parametrize("byte_count", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES - 1])
def test_chunks_are_of_one_mebibyte_and_the_last_one_shorter(byte_count: int) -> None:
    payload = random.Random(byte_count).randbytes(byte_count)
    messages = frames(payload)
    lengths = [len(message) - HEADER.size for message in messages[1:-1]]
    assert len(lengths) == -(-byte_count // CHUNK_BYTES)
    assert all(length == CHUNK_BYTES for length in lengths[:-1])
    assert all(type(message) is bytes for message in messages), "gRPC copies anything else"
    (whole,) = assemble(messages, byte_count)
    assert whole.payload == payload


def test_transfers_follow_one_another_on_a_stream() -> None:
    into, payloads = assembler(100), [bytes([n]) * 100 for n in range(3)]
    messages = [m for n, payload in enumerate(payloads) for m in small_frames(payload, 30, n)]
    assert into.head is None
    into.feed(messages[0])
    assert into.head == head(100)  # the transfer under way is known by it
    arrived = [whole.payload for message in messages[1:] if (whole := into.feed(message))]
    assert arrived == payloads  # an earlier payload is not written to again
    assert into.head is None


@given(st.binary(max_size=80), st.integers(1, 80), st.data())
def test_no_corrupted_byte_anywhere_gives_a_wrong_transfer(
    payload: bytes, chunk: int, data: st.DataObject
) -> None:
    messages = small_frames(payload, chunk)
    number = data.draw(st.integers(0, len(messages) - 1))
    message = bytearray(messages[number])
    flips = st.integers(1, 255) | st.integers(0, 7).map(lambda bit: 1 << bit)
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(flips)
    messages[number] = bytes(message)
    with pytest.raises(FrameError):
        assemble(messages, len(payload))


@given(st.binary(min_size=1, max_size=60), st.integers(1, 20), st.data())
def test_lost_repeated_and_swapped_frames_are_detected(
    payload: bytes, chunk: int, data: st.DataObject
) -> None:
    """gRPC keeps order; a bug at the sender need not."""
    messages = small_frames(payload, chunk)
    at = data.draw(st.integers(0, len(messages) - 2))
    before, one, other, after = messages[:at], messages[at], messages[at + 1], messages[at + 2 :]
    for damaged in ([other], [one, one, other], [other, one]):
        with pytest.raises(FrameError):
            assemble([*before, *damaged, *after], len(payload))


@pytest.mark.parametrize("cut", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 5, None])
def test_a_truncated_frame_and_a_longer_one_than_its_header_says_are_refused(
    cut: int | None,
) -> None:
    frame = encode_frame(Kind.CHUNK, 1, 0, b"0123456789")
    with pytest.raises(FrameError, match=r"has no header|the frame says"):
        decode_frame(frame + b"2" if cut is None else frame[:cut])


def test_a_head_of_another_size_is_refused_before_anything_is_allocated() -> None:
    huge = encode_frame(Kind.HEAD, 1, 0, head(1 << 40).SerializeToString())
    tracemalloc.start()
    with pytest.raises(FrameError, match="1099511627776 bytes, the layout says 100"):
        assembler(100).feed(huge)
    assert tracemalloc.get_traced_memory()[1] < 1 << 16
    tracemalloc.stop()
    with pytest.raises(FrameError, match="the transfer was not asked for"):
        assemble(frames(b"0123456789"), None)


def resealed(messages: list[bytes], trailer: pb.Trailer) -> list[bytes]:
    offset = struct.unpack_from("<Q", messages[-1], 8)[0]
    return [*messages[:-1], encode_frame(Kind.TRAILER, 1, offset, trailer.SerializeToString())]


CHUNK = encode_frame(Kind.CHUNK, 1, 0, b"0123456789")
START, _, END = frames(b"0123456789")
OTHER = encode_frame(Kind.CHUNK, 2, 0, b"0123456789")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([CHUNK], "transfer 1 has no head"),
        ([END], "transfer 1 has no head"),
        ([START, OTHER], "transfer 2 has no head"),
        ([START, START], "transfer 1 has no trailer"),
        ([START, END], "byte 10 arrived, the next one is 0"),
        ([START, CHUNK, CHUNK], "byte 0 arrived, the next one is 10"),
        ([START, encode_frame(Kind.CHUNK, 1, 0, b"x" * 11)], "more than the 10 bytes of its head"),
        ([START, encode_frame(Kind.CHUNK, 1, 0, b"")], "a chunk is empty"),
        ([encode_frame(Kind.CHUNK, 1, 0, bytes(CHUNK_BYTES + 1))], "a chunk of 1048577 bytes"),
        ([encode_frame(Kind.HEAD, 1, 0, bytes(HEAD_BYTES_MAX + 1))], f"most is {HEAD_BYTES_MAX}"),
        ([encode_frame(Kind.HEAD, 1, 0, b"\xff")], "the head is not a Transfer"),
        ([encode_frame(Kind.HEAD, 1, 8, b"")], "a head at byte 8"),
        ([START, CHUNK, encode_frame(Kind.TRAILER, 1, 10, b"\xff")], "the trailer is not a T"),
        (resealed([START, END], pb.Trailer(byte_count=10)), "byte 10 arrived"),
        (resealed([START, CHUNK, END], pb.Trailer(byte_count=9)), "10 of 10 bytes"),
        (resealed([START, CHUNK, END], pb.Trailer(byte_count=10)), "the checksum is wrong"),
        ([HEADER.pack(0xA701, 9, 0, 1, 0, 0, 0)], "frame kind 9 is unknown"),
        ([HEADER.pack(0xA702, 1, 0, 1, 0, 0, 0)], "header is not Atoll's"),
        ([HEADER.pack(0xA701, 1, 0, 1, 0, 0, 0)], "the check of the head is wrong"),
    ],
)
def test_a_broken_stream_is_told_what_is_wrong(messages: list[bytes], reason: str) -> None:
    with pytest.raises(FrameError) as raised:
        assemble(messages, 10)
    assert reason in str(raised.value)


def test_the_checksum_is_xxh3_over_all_chunks_in_order() -> None:
    """What any other implementation of the contract must send."""
    payload = random.Random(1).randbytes(2 * CHUNK_BYTES + 17)
    trailer = pb.Trailer.FromString(bytes(decode_frame(frames(payload)[-1]).payload))
    checksum = xxhash.xxh3_64_intdigest(payload)
    assert trailer == pb.Trailer(byte_count=len(payload), checksum=checksum)
    assert HEADER.size == 32


def test_a_payload_is_sent_from_any_view_without_being_copied_first() -> None:
    payload = memoryview(bytearray(range(64))).cast("I")
    first = next(transfer_frames(1, head(64), payload))
    assert decode_frame(first).kind is Kind.HEAD
    (whole,) = assemble(list(transfer_frames(1, head(64), payload)), 64)
    assert whole.payload == bytes(range(64))


def test_a_head_has_room_for_the_largest_data_state_and_for_all_slots_of_the_largest_region() -> (
    None
):
    """Rule 13's lineage; a learner gives it back with the version that it holds (rule 22)."""
    offer = pb.Offer(data_state=bytes(DATA_STATE_BYTES_MAX), base_digest="d" * 64)
    most = (1 << 28) - 1  # steps and versions: longer than a year of steps of 100 ms
    lineage = [
        pb.SlotMerged(
            slot=slot_name("r" * 40, ordinal), incarnation=99, base=most, capture=most, cursor=most
        )
        for ordinal in range(10_000)
    ]
    name = pb.Version(run="r" * 16, number=most, epoch=99, digest="d" * 64)
    publish = pb.Publish(version=pb.SliceVersion(version=name), lineage=lineage)
    for transfer in (pb.Transfer(offer=offer), pb.Transfer(publish=publish)):
        payload = transfer.SerializeToString()
        assert len(payload) > HEAD_BYTES_MAX // 2
        frame = encode_frame(Kind.HEAD, 1, 0, payload)
        assert decode_frame(frame).payload == payload
        assert len(frame) < BULK_BYTES_MAX


@pytest.mark.parametrize("kept", range(4))
def test_a_transfer_that_ends_early_is_not_whole_though_its_trailer_fits_what_came(
    kept: int,
) -> None:
    """Else what did not come would be merged as zeros."""
    payload = bytes(range(1, 41))
    begun, short = small_frames(payload, 10), small_frames(payload[: 10 * kept], 10)
    into = assembler(len(payload))
    for message in begun[: 1 + kept]:
        into.feed(message)
    with pytest.raises(FrameError, match=f"{10 * kept} of 40 bytes"):
        into.feed(short[-1])
