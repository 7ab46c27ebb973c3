"""Raw frames of the bulk stream: transfers of values, cut into pieces and put together again.

Protobuf copies every `bytes` field once when a message is built and once when it is parsed. So
`Bulk` is a gRPC method without a serializer: each message is a header of 32 bytes and a payload,
joined by one copy. A stream carries transfers one after another, in one direction:

    HEAD      a serialized pb.Transfer: what it is, its encoding and its length
    CHUNK     up to 1 MiB of the values' bytes, at `offset`      } none where the length is 0
    ...                                                          }
    TRAILER   a serialized pb.Trailer: the length again, and the checksum of all chunks

and every frame begins with this header, little-endian:

    bytes   0..1    2     3     4..7       8..15    16..23   24..31
            magic   kind  zero  transfer   offset   length   check

`transfer` is the sender's number of the transfer. `offset` counts the chunks' bytes so far, so that
a lost or repeated frame is noticed at once. `check` is the xxh3_64 of a head or trailer; a chunk's
is 0, since the trailer's checksum covers all chunks.

`transfer_frames` reads the payload as frames are taken, so flow control keeps few in memory; the
payload must not change meanwhile. Values count only once `Assembler.feed` returns the transfer
whole (rule 12). Every departure raises FrameError, after which the receiver ends that session.

Of a session of several lanes each carries a *stripe* of every transfer (gathering.py): the head of
the whole, and chunks and trailer of some of its bytes.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import xxhash
from google.protobuf.message import DecodeError

import atoll_protos.v1.atoll_pb2 as pb

MAGIC: Final = 0xA701
CHUNK_BYTES: Final = 1 << 20
# A Publish names what it holds of every slot, some 70 bytes each; an offer may bring a data state
# of names.DATA_STATE_BYTES_MAX.
HEAD_BYTES_MAX: Final = (1 << 20) + (64 << 10)
HEADER: Final = struct.Struct("<HBBIQQQ")

Buffer = bytes | bytearray | memoryview


class FrameError(Exception):
    """A stream that is not frames in order, or a transfer whose content is not what it says."""


class Kind(IntEnum):
    """What a frame's payload is."""

    HEAD = 1  # a serialized Transfer
    CHUNK = 2
    TRAILER = 3  # a serialized Trailer


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame; `payload` is a view into the received message."""

    kind: Kind
    transfer: int
    offset: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Whole:
    """A verified transfer."""

    head: pb.Transfer
    payload: bytearray


def encode_frame(kind: Kind, transfer: int, offset: int, payload: Buffer) -> bytes:
    check = _check(kind, payload)
    return b"".join((HEADER.pack(MAGIC, kind, 0, transfer, offset, len(payload), check), payload))


def decode_frame(message: bytes) -> Frame:
    """Raise FrameError unless header and length fit the message."""
    if len(message) < HEADER.size:
        raise FrameError(f"a frame of {len(message)} bytes has no header")
    magic, kind, zero, transfer, offset, length, check = HEADER.unpack_from(message)
    if magic != MAGIC or zero:
        raise FrameError("the frame's header is not Atoll's")
    if kind not in (Kind.HEAD, Kind.CHUNK, Kind.TRAILER):
        raise FrameError(f"frame kind {kind} is unknown")
    if length != len(message) - HEADER.size:
        raise FrameError(f"the frame says {length} bytes and has {len(message) - HEADER.size}")
    payload = memoryview(message)[HEADER.size :]
    limit = CHUNK_BYTES if kind == Kind.CHUNK else HEAD_BYTES_MAX
    if length > limit:
        raise FrameError(f"a {Kind(kind).name.lower()} of {length} bytes, the most is {limit}")
    if check != _check(Kind(kind), payload):
        raise FrameError(f"the check of the {Kind(kind).name.lower()} is wrong")
    return Frame(Kind(kind), transfer, offset, payload)


def _check(kind: Kind, payload: Buffer) -> int:
    return 0 if kind is Kind.CHUNK else xxhash.xxh3_64_intdigest(payload)


def stripe(byte_count: int, lanes: int, lane: int) -> range:
    """Which bytes of a transfer go on a lane; lanes differ by one byte at most (rule 32)."""
    return range(byte_count * lane // lanes, byte_count * (lane + 1) // lanes)


def transfer_frames(
    transfer: int, head: pb.Transfer, payload: Buffer, lanes: int = 1, lane: int = 0
) -> Iterator[bytes]:
    """Of `payload`, which is read as they go; of several lanes those of one."""
    view = memoryview(payload).cast("B")
    assert head.byte_count == len(view), "the head names another length"
    part = stripe(len(view), lanes, lane)
    yield encode_frame(Kind.HEAD, transfer, 0, head.SerializeToString())
    digest = xxhash.xxh3_64()
    for begin in range(part.start, part.stop, CHUNK_BYTES):
        chunk = view[begin : min(begin + CHUNK_BYTES, part.stop)]
        digest.update(chunk)
        yield encode_frame(Kind.CHUNK, transfer, begin - part.start, chunk)
    trailer = pb.Trailer(byte_count=len(part), checksum=digest.intdigest())
    yield encode_frame(Kind.TRAILER, transfer, len(part), trailer.SerializeToString())


class Assembler:
    """One direction of one Bulk stream: frames in, whole transfers out.

    `admit(head)` says how many bytes the transfer must have, or None to refuse it; it is asked
    before anything is allocated (rule 25). Of one lane among several it says where they go.
    """

    def __init__(self, admit: Callable[[pb.Transfer], int | memoryview | None]) -> None:
        self._admit = admit
        self._transfer: int | None = None
        self._head = pb.Transfer()
        self._payload = bytearray()
        self._place = memoryview(self._payload)
        self._filled = 0
        self._digest = xxhash.xxh3_64()

    @property
    def head(self) -> pb.Transfer | None:
        return None if self._transfer is None else self._head

    def feed(self, message: bytes) -> Whole | None:
        """Take one frame; returns the transfer that it completes. Raises FrameError."""
        frame = decode_frame(message)
        if frame.kind is Kind.HEAD:
            self._begin(frame)
            return None
        if frame.transfer != self._transfer:
            raise FrameError(f"transfer {frame.transfer} has no head")
        if frame.offset != self._filled:
            raise FrameError(f"byte {frame.offset} arrived, the next one is {self._filled}")
        if frame.kind is Kind.CHUNK:
            self._take(frame.payload)
            return None
        return self._finish(frame)

    def _begin(self, frame: Frame) -> None:
        if self._transfer is not None:
            raise FrameError(f"transfer {self._transfer} has no trailer")
        if frame.offset:
            raise FrameError(f"a head at byte {frame.offset}")
        try:
            self._head = pb.Transfer.FromString(bytes(frame.payload))
        except DecodeError as error:
            raise FrameError("the head is not a Transfer") from error
        admitted = self._admit(self._head)
        if admitted is None:
            raise FrameError("the transfer was not asked for")
        if isinstance(admitted, int):
            check_length(self._head, admitted)
            self._payload = bytearray(admitted)
            admitted = memoryview(self._payload)
        self._transfer, self._place, self._filled = frame.transfer, admitted, 0
        self._digest = xxhash.xxh3_64()

    def _take(self, chunk: memoryview) -> None:
        end = self._filled + len(chunk)
        if end == self._filled:
            raise FrameError("a chunk is empty")
        if end > len(self._place):
            raise FrameError(f"more than the {len(self._place)} bytes of its head")
        self._place[self._filled : end] = chunk
        self._digest.update(chunk)
        self._filled = end

    def _finish(self, frame: Frame) -> Whole:
        try:
            trailer = pb.Trailer.FromString(bytes(frame.payload))
        except DecodeError as error:
            raise FrameError("the trailer is not a Trailer") from error
        expected = len(self._place)
        if self._filled != expected or trailer.byte_count != self._filled:
            raise FrameError(f"{self._filled} of {expected} bytes at the trailer")
        if trailer.checksum != self._digest.intdigest():
            raise FrameError("the checksum is wrong")
        whole = Whole(self._head, self._payload)
        self._transfer, self._payload = None, bytearray()
        self._place = memoryview(self._payload)
        return whole


def check_length(head: pb.Transfer, byte_count: int) -> None:
    """Raise FrameError for a head that names another length than the layout."""
    if head.byte_count != byte_count:
        raise FrameError(f"{head.byte_count} bytes, the layout says {byte_count}")
