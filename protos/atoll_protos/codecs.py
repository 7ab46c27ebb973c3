"""How f32 values become bytes on the wire, and how many: the table of codecs; no arithmetic.

A run file chooses two codecs by name: `sync.wire_up` for what learners send (the differences of
an offer) and `sync.wire_down` for what shards publish. This module is the one home of everything
about a codec that is not arithmetic: its name in manifests and run files, its number in messages,
how many bytes n values take and how these bytes are laid out. It imports neither torch nor numpy,
so that the operator and the rules of a shard can use it. The arithmetic is in `tensors`.

Layout of the bytes of n values
-------------------------------
f32 and bf16 are the values themselves, little-endian, one after another.

int8 and int4 are linear and symmetric, with one f32 scale for each block of consecutive values:

    scale[b] = max |v| in block b / levels
    level[i] = round(v[i] / scale[b])             |level| <= levels

The scales of all blocks come first, then the levels. An int8 level is one byte, in two's
complement. Two int4 levels share a byte, the even element in the low half, each in two's complement
of four bits. The last block may be short; with an odd n the last high half-byte has no meaning.

A block whose largest value is too small for a scale (1 / scale would be infinite) decodes to
zeros. A value that is not finite makes its block not finite, so that the receiver's norm finds it.

Layout of the bytes of a slice
------------------------------
Averaged buffers (statistics, constants) need all of their bits, so an integer or 16-bit wire is
not for them. They lie first in a slice, and their values travel in f32 whatever the codec; the
codec writes the other values, which follow:

    exact: f32 ...    coded: as above, in the encoding that the transfer names

`Form` says how many there are of each, so it tells the size of every transfer of a slice. f32
comes first because scales and values then lie at multiples of their size. In a Publish that is a
difference the exact values are whole values all the same: that takes no more bytes than their
difference, and needs no sum that would be rounded.

What a base is
--------------
Every learner and its shard must hold a published version (a *base*) bit for bit alike, whatever
the codec of the wire. A base is f32 where `sync.wire_down` is f32, else bf16 (docs/protocol.md,
rule 17): `Codec.base` says which; its exact values are f32 always. `Packed` is a base in memory:
its bytes, and both kinds of values as views of them. A codec with scales cannot carry a base
exactly; under such a codec a shard publishes the encoded difference to the version before, and
sends whole values (to a newcomer) in the encoding of the base. The last version of a slice is whole
and f32 on every wire, unless all tensors of the slice are bf16 (`Layout.final_encoding`).

To add a codec
--------------
1. its number in `enum Encoding` of v1/atoll.proto, 2. its name and its row here, 3. in `tensors`
its arithmetic, unless it is one more integer type of 8 or 4 bits, which the row alone describes.
Run files, the manifest's schema and all programs take their names and sizes from the table.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

import atoll_protos.v1.atoll_pb2 as pb

SCALE_BYTES: Final = 4  # an f32
EXACT_BYTES: Final = 4  # an f32

Values = TypeVar("Values")  # arrays of some library


class Wire(StrEnum):
    """The name of a codec in manifests and run files."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One way to write f32 values as bytes.

    `bits` is the size of one value without its share of a scale. `block` is the number of values
    that share a scale (1 where there are none), `levels` the largest level of either sign (0 where
    there are none). `base` is the encoding in which both sides hold versions that were published
    with this codec: F32 or BF16.
    """

    wire: Wire
    encoding: pb.Encoding
    bits: int
    base: pb.Encoding
    block: int = 1
    levels: int = 0

    @property
    def scaled(self) -> bool:
        """Whether values are integer levels under a scale for each block."""
        return self.levels > 0

    def scale_bytes(self, element_count: int) -> int:
        """Bytes of the scales of so many values; they come before the values."""
        return SCALE_BYTES * -(-element_count // self.block) if self.scaled else 0

    def byte_count(self, element_count: int) -> int:
        """Bytes of so many values, scales included."""
        return self.scale_bytes(element_count) + -(-element_count * self.bits // 8)


CODECS: Final = (
    Codec(wire=Wire.F32, encoding=pb.F32, bits=32, base=pb.F32),
    Codec(wire=Wire.BF16, encoding=pb.BF16, bits=16, base=pb.BF16),
    Codec(wire=Wire.INT8, encoding=pb.INT8, bits=8, base=pb.BF16, block=256, levels=127),
    Codec(wire=Wire.INT4, encoding=pb.INT4, bits=4, base=pb.BF16, block=64, levels=7),
)
BY_WIRE: Final[Mapping[Wire, Codec]] = {codec.wire: codec for codec in CODECS}
BY_ENCODING: Final[Mapping[int, Codec]] = {codec.encoding: codec for codec in CODECS}
BLOCK_MAX: Final = max(codec.block for codec in CODECS)


def of(encoding: pb.Encoding) -> Codec:
    """The codec with that number in messages. Raises ValueError for a number without a codec."""
    codec = BY_ENCODING.get(encoding)
    if codec is None:
        raise ValueError(f"encoding {encoding} is unknown")
    return codec


def encoding_of(wire: Wire) -> pb.Encoding:
    """The number in messages of a codec that a run file names."""
    return BY_WIRE[wire].encoding


def base_encoding(wire_down: Wire) -> pb.Encoding:
    """How both sides hold a version, and how whole values travel: F32 or BF16."""
    return BY_WIRE[wire_down].base


def encoded_size(element_count: int, encoding: pb.Encoding) -> int:
    """Bytes that so many values take. Raises ValueError for a number without a codec."""
    return of(encoding).byte_count(element_count)


@dataclass(frozen=True, slots=True)
class Form:
    """How many values of a slice lie in its bytes as f32, and how many as a codec writes them."""

    exact: int  # of averaged buffers; they come first
    coded: int

    @property
    def element_count(self) -> int:
        """Values in all."""
        return self.exact + self.coded

    @property
    def exact_bytes(self) -> int:
        """Where the bytes of the coded values begin."""
        return EXACT_BYTES * self.exact

    def byte_count(self, encoding: pb.Encoding) -> int:
        """Bytes of the slice in that encoding. Raises ValueError for one without a codec."""
        return self.exact_bytes + encoded_size(self.coded, encoding)

    def cut(self, data: bytes | bytearray | memoryview) -> tuple[memoryview, memoryview]:
        """Views of the bytes of the exact values and of those of the coded ones."""
        view = memoryview(data)
        return view[: self.exact_bytes], view[self.exact_bytes :]


@dataclass(frozen=True, slots=True, eq=False)
class Packed(Generic[Values]):
    """The whole values of a slice: its bytes, and the values as views of them.

    `exact` is f32 [form.exact], `coded` f32 or bf16 [form.coded].
    """

    form: Form
    data: memoryview
    exact: Values
    coded: Values

    @property
    def digest(self) -> str:
        """The digest of a version with this base."""
        return digest(self.data)

    def part(self, span: range | slice) -> Values:
        """A view of the values of a span, which lies in the exact or in the coded values."""
        first = self.form.exact
        if span.stop <= first:
            return self.exact[span.start : span.stop]  # type: ignore[index,no-any-return]
        assert span.start >= first, (span, self.form)
        return self.coded[span.start - first : span.stop - first]  # type: ignore[index,no-any-return]


def digest(data: bytes | bytearray | memoryview) -> str:
    """sha256 of the bytes of a base, hexadecimal: the digest of the version."""
    return hashlib.sha256(data).hexdigest()
