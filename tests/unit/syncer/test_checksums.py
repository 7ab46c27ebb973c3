"""A document's checksum: whatever happens to one byte, it is noticed."""

import pytest

from atoll_syncer.storage.journal import DamagedError, with_checksum, without_checksum

DOCUMENT = {"seq": 7, "run": "r", "tick": 24, "names": ["a", "ü"]}


def test_what_was_written_comes_back() -> None:
    assert without_checksum(with_checksum(DOCUMENT)) == DOCUMENT


def test_every_flipped_bit_is_noticed() -> None:
    data = with_checksum(DOCUMENT)
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedError):
            without_checksum(bytes(damaged))


def test_every_truncation_is_noticed() -> None:
    data = with_checksum(DOCUMENT)
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            without_checksum(data[:length])
    with pytest.raises(DamagedError):
        without_checksum(data + data)


@pytest.mark.parametrize("data", [b"", b"\0" * 99, b"[]\n", b'{"seq": 1}\n', b"\xff\xfe\n"])
def test_garbage_is_no_document(data: bytes) -> None:
    with pytest.raises(DamagedError):
        without_checksum(data)
