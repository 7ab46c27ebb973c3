"""How f32 values become bytes on the wire, and how many: the table of codecs; no arithmetic.

f32 and bf16 are the values themselves, little-endian. int8 and int4 are linear and symmetric, with
one f32 scale for each block of consecutive values:

    scale[b] = max |v| in block b / levels
    level[i] = round(v[i] / scale[b])             |level| <= levels

int2 is for offers alone. Its levels are -10, -3, 3 and 10: the four of Lloyd and Max (Max 1960,
10.1109/TIT.1960.1057548), which are at 0.453 and 1.510 of a normal distribution's width, have this
ratio. Not all differences are normal, so the scale, in bf16, is fitted to the block (Lloyd 1982,
10.1109/TIT.1982.1056489). With n values in block b, s = max |v| / 512 and q[i] = round(|v[i]| / s):

    u = 0.151 sqrt(sum q^2 / n);   twice: level[i] = 10 if q[i] > 6.5 u else 3
                                          u = sum(q level) / sum(level^2)
    scale[b] = bf16(s u);   level[i] with the sign of v[i]

The scales of all blocks come first, then the levels: a byte each, or two int4 or four int2 in a
byte, the first element in the lowest bits. Levels of int8 and int4 are in two's complement; the low
bit of an int2 says 10, the high one a minus. The last block may be short; bits of the last byte
that are of no element have no meaning. A block whose 1 / scale would be infinite decodes to zeros.
A value that is not finite makes its block not finite, so that the receiver's norm finds it.

In the bytes of a slice averaged buffers (statistics, constants) lie first, and their values travel
in f32 and whole whatever the codec, also in a difference; `Form` says how many there are.

A *base* is a published version, which every learner and its shard hold bit for bit alike: f32 where
`sync.wire_down` is f32, else bf16 (rule 17); exact values and, unless all its tensors are bf16, the
last version of a slice are f32. A codec with scales cannot carry a base exactly: under one a shard
publishes the encoded difference to the version before, and whole values in the base's encoding.

To add a codec: its number in `enum Encoding` of v1/atoll.proto, its name and row here, and in
`arrays` its arithmetic, unless it is one more linear one of 8 or 4 bits.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

import atoll_protos.v1.atoll_pb2 as pb

EXACT_BYTES: Final = 4  # an f32

Values = TypeVar("Values")  # arrays of some library


class Wire(StrEnum):
    """The name of a codec in manifests and run files."""

    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A way to write f32 values in `bits` bits each, without their share of a scale.

    `block` values share a scale (1: none), which is written in `scale`: F32 or BF16. `levels` is
    the largest level of either sign (0: none). Levels are linear, unless `table` has that of each
    code. `base` is the encoding in which both sides hold versions of this codec: F32 or BF16. No
    shard publishes in one that is for offers alone.
    """

    wire: Wire
    encoding: pb.Encoding
    bits: int
    base: pb.Encoding
    block: int = 1
    levels: int = 0
    scale: pb.Encoding = pb.F32
    table: tuple[int, ...] = ()
    offers_alone: bool = False

    @property
    def scaled(self) -> bool:
        return self.levels > 0

    def scale_bytes(self, element_count: int) -> int:
        each = BY_ENCODING[self.scale].bits // 8
        return each * -(-element_count // self.block) if self.scaled else 0

    def byte_count(self, element_count: int) -> int:
        return self.scale_bytes(element_count) + -(-element_count * self.bits // 8)


CODECS: Final = (
    Codec(wire=Wire.F32, encoding=pb.F32, bits=32, base=pb.F32),
    Codec(wire=Wire.BF16, encoding=pb.BF16, bits=16, base=pb.BF16),
    Codec(wire=Wire.INT8, encoding=pb.INT8, bits=8, base=pb.BF16, block=256, levels=127),
    Codec(wire=Wire.INT4, encoding=pb.INT4, bits=4, base=pb.BF16, block=64, levels=7),
    Codec(
        wire=Wire.INT2,
        encoding=pb.INT2,
        bits=2,
        base=pb.BF16,
        block=64,
        levels=10,
        scale=pb.BF16,
        table=(3, 10, -3, -10),
        offers_alone=True,
    ),
)
BY_WIRE: Final[Mapping[Wire, Codec]] = {codec.wire: codec for codec in CODECS}
BY_ENCODING: Final[Mapping[int, Codec]] = {codec.encoding: codec for codec in CODECS}
WIRES_DOWN: Final = tuple(codec.wire for codec in CODECS if not codec.offers_alone)
BLOCK_MAX: Final = max(codec.block for codec in CODECS)


def of(encoding: pb.Encoding) -> Codec:
    """Raise ValueError for a number without a codec."""
    codec = BY_ENCODING.get(encoding)
    if codec is None:
        raise ValueError(f"encoding {encoding} is unknown")
    return codec


def encoding_of(wire: Wire) -> pb.Encoding:
    return BY_WIRE[wire].encoding


def base_encoding(wire_down: Wire) -> pb.Encoding:
    """How both sides hold a version, and how whole values travel: F32 or BF16."""
    return BY_WIRE[wire_down].base


def encoded_size(element_count: int, encoding: pb.Encoding) -> int:
    """Raise ValueError for a number without a codec."""
    return of(encoding).byte_count(element_count)


@dataclass(frozen=True, slots=True)
class Form:
    """How many values of a slice lie in its bytes as f32, and how many as a codec writes them."""

    exact: int  # of averaged buffers; they come first
    coded: int

    @property
    def element_count(self) -> int:
        return self.exact + self.coded

    @property
    def exact_bytes(self) -> int:
        return EXACT_BYTES * self.exact

    def byte_count(self, encoding: pb.Encoding) -> int:
        """Raise ValueError for an encoding without a codec."""
        return self.exact_bytes + encoded_size(self.coded, encoding)

    def cut(self, data: bytes | bytearray | memoryview) -> tuple[memoryview, memoryview]:
        view = memoryview(data)
        return view[: self.exact_bytes], view[self.exact_bytes :]


@dataclass(frozen=True, slots=True, eq=False)
class Packed(Generic[Values]):
    """A slice's bytes, and views: `exact` f32 [form.exact], `coded` f32 or bf16 [form.coded]."""

    form: Form
    data: memoryview
    exact: Values
    coded: Values

    @property
    def digest(self) -> str:
        return digest(self.data)

    def part(self, span: range | slice) -> Values:
        """View the values of a span, which lies in the exact or in the coded values."""
        first = self.form.exact
        if span.stop <= first:
            return self.exact[span.start : span.stop]  # type: ignore[index,no-any-return]
        assert span.start >= first, (span, self.form)
        return self.coded[span.start - first : span.stop - first]  # type: ignore[index,no-any-return]


def digest(data: bytes | bytearray | memoryview) -> str:
    """sha256 of the bytes of a base, hexadecimal: the digest of the version."""
    return hashlib.sha256(data).hexdigest()
