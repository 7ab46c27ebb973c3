"""Values on the wire: bytes that say which symbol they stand for, and where in the slice they lie.

Each word of 4 bytes is the number of a symbol plus a multiple of the word's place. So a slice that
is put together shows every byte that is of another symbol, or lies elsewhere than it was sent for.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.transfer.codecs import BLOCK_MAX, BY_ENCODING, EXACT_BYTES, Form

WORD_BYTES = 4
STRIDE = 0x9E3779B1  # odd, so that no two places of a slice have the same word
WORDS_MAX = 1 << 16


def written(number: int, byte_count: int) -> bytes:
    """The bytes of a slice that stand for the symbol of this number."""
    words = -(-byte_count // WORD_BYTES)
    return (_places(words) + np.uint32(number)).tobytes()[:byte_count]


def number_of(
    data: bytes | bytearray | memoryview, places: Sequence[int] = range(WORD_BYTES)
) -> int:
    """Which symbol bytes stand for that lie at these places of a slice.

    A byte shows eight bits of the number, once those below are known. Of a few bytes some are
    not to be seen, and are 0: they make no difference to these bytes.
    """
    number = 0
    for low in range(WORD_BYTES):
        seen = zip(data, places, strict=False)
        for byte, place in (each for each in seen if each[1] % WORD_BYTES == low):
            known = number + int(place) // WORD_BYTES * STRIDE
            number |= (byte - (known >> 8 * low)) % 256 << 8 * low
            break
    return number


@cache
def _places(words: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    assert words <= WORDS_MAX, "a slice of the simulation is small"
    return np.arange(words, dtype=np.uint32) * np.uint32(STRIDE)


def edges_of(form: Form, parts: int) -> list[int]:
    """Where parts begin and end, written down from the words of rule 32 and from nothing else."""
    elements, exact = form.element_count, form.exact
    edges = [elements * part // parts for part in range(parts)]
    return [*(x - max(0, x - exact) % 256 for x in edges), elements]


@cache
def places_of(
    form: Form, encoding: pb.Encoding, parts: int, part: int
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Where the bytes of a part lie in the slice: those of its elements and of their scales."""
    first, stop = edges_of(form, parts)[part : part + 2]
    owners = _owners(form, encoding)
    return np.flatnonzero((first <= owners) & (owners < stop))


@cache
def _owners(form: Form, encoding: pb.Encoding) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """By byte of the slice: the element that it is of, or the first one that its scale is for."""
    codec = BY_ENCODING[encoding]
    assert BLOCK_MAX % codec.block == 0, "rule 32 is about blocks that divide 256"
    coded = np.arange(form.coded)
    exact = np.repeat(np.arange(form.exact), EXACT_BYTES)
    scales = np.repeat(coded[:: codec.block], codec.scale_bytes(1))
    levels = coded[np.arange(-(-form.coded * codec.bits // 8)) * 8 // codec.bits]
    return np.concatenate((exact, scales + form.exact, levels + form.exact))


def part_of(number: int, form: Form, encoding: pb.Encoding, parts: int, part: int) -> bytes:
    """The bytes of one part of a slice that stands for this symbol."""
    whole = np.frombuffer(written(number, form.byte_count(encoding)), dtype=np.uint8)
    return whole[places_of(form, encoding, parts, part)].tobytes()
