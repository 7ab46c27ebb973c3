"""The table of codecs: one row for each encoding of the protocol, and the sizes of its bytes."""

from typing import cast

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import codecs
from atoll_protos.codecs import CODECS, Codec, Wire


def test_every_name_and_every_encoding_has_one_row() -> None:
    assert [codec.wire for codec in CODECS] == list(Wire)
    numbers = [number for number in pb.Encoding.values() if number != pb.ENCODING_UNSPECIFIED]
    assert [codec.encoding for codec in CODECS] == numbers


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.wire)
def test_a_codec_has_one_name_in_run_files_and_in_messages(codec: Codec) -> None:
    assert pb.Encoding.Name(codec.encoding) == codec.wire.upper()
    assert codecs.encoding_of(codec.wire) == codec.encoding
    assert codecs.of(codec.encoding) is codec


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.wire)
def test_sizes_are_those_of_the_contract(codec: Codec) -> None:
    bits = {pb.F32: 32, pb.BF16: 16, pb.INT8: 8 + 32 / 256, pb.INT4: 4 + 32 / 64}[codec.encoding]
    assert codecs.encoded_size(1 << 20, codec.encoding) * 8 == bits * (1 << 20)
    assert codecs.encoded_size(0, codec.encoding) == 0


def test_a_short_block_has_a_scale_and_a_half_byte_takes_a_whole_one() -> None:
    assert codecs.encoded_size(257, pb.INT8) == 2 * 4 + 257
    assert codecs.encoded_size(65, pb.INT4) == 2 * 4 + 33


def test_averaged_buffers_take_four_bytes_in_every_encoding() -> None:
    """Rule 18; the sizes of rule 25 count them so."""
    for codec in codecs.CODECS:
        size = codecs.Form(3, 65).byte_count(codec.encoding)
        assert size == 12 + codecs.encoded_size(65, codec.encoding)
    with pytest.raises(ValueError, match="encoding 9"):
        codecs.Form(3, 65).byte_count(cast(pb.Encoding, 9))


def test_an_unknown_encoding_has_no_size() -> None:
    with pytest.raises(ValueError, match="encoding 9 is unknown"):
        codecs.encoded_size(1, cast(pb.Encoding, 9))
    with pytest.raises(ValueError, match="encoding 0 is unknown"):
        codecs.encoded_size(1, pb.ENCODING_UNSPECIFIED)


@pytest.mark.parametrize("wire", list(Wire))
def test_a_base_is_bf16_unless_the_wire_is_f32(wire: Wire) -> None:
    assert codecs.base_encoding(wire) == (pb.F32 if wire is Wire.F32 else pb.BF16)


@pytest.mark.parametrize("wire", list(Wire))
def test_a_base_is_held_in_an_encoding_that_is_exact(wire: Wire) -> None:
    assert not codecs.of(codecs.base_encoding(wire)).scaled
