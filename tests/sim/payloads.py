"""Values on the wire: bytes that say which symbol they stand for, and where in the slice they lie.

Each word of 4 bytes is the number of a symbol plus a multiple of the word's place. So a slice that
is put together shows every byte that is of another symbol, or lies elsewhere than it was sent for.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

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
