import json
import struct

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from atoll_protos.transfer.arrays import BF16, F32
from atoll_syncer.storage.objects import (
    ObjectError,
    decode,
    decode_header,
    encode_header,
    encode_parts,
)

ARRAYS = {
    "master": np.arange(7, dtype=F32),
    "base": np.arange(15, dtype=F32).astype(BF16),
    "bytes": np.arange(9, dtype=np.uint8),
    "empty": np.zeros(0, F32),
}


def test_the_safetensors_library_reads_what_we_write() -> None:
    data = b"".join(encode_parts(ARRAYS, {"format": "pt"}))
    read = safetensors.torch.load(data)
    assert set(read) == set(ARRAYS)
    assert read["base"].dtype is torch.bfloat16
    for name, array in ARRAYS.items():
        assert np.array_equal(read[name].float().numpy(), array.astype(F32))


def test_we_read_what_the_safetensors_library_writes() -> None:
    given = {**ARRAYS, "matrix": np.ones((2, 3), F32)}
    arrays, metadata = decode(bytearray(safetensors.numpy.save(given, {"who": "library"})))
    assert metadata == {"who": "library"}
    for name, array in given.items():
        assert np.array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_the_header_alone_says_where_everything_lies() -> None:
    data = b"".join(encode_parts(ARRAYS, {"epoch": "3"}))
    header = encode_header({"base": ("BF16", (3, 5))}, {})
    assert len(header) % 64 == 0
    contents = decode_header(data[:1024])
    assert contents.metadata == {"epoch": "3"}
    assert contents.byte_count == len(data)
    entry = contents.entries["base"]
    assert data[entry.start : entry.stop] == ARRAYS["base"].tobytes()


def written(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 9) + b"not json!",
        written([]),
        written({"a": {"dtype": "F32", "shape": [1]}}),
        written({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}),
        written({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
        written({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}),
        written({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
        written({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}),
        written({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
    ],
)
def test_broken_headers_are_refused(data: bytes) -> None:
    with pytest.raises(ObjectError):
        decode_header(data)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_length_is_refused(change: int) -> None:
    data = bytearray(b"".join(encode_parts(ARRAYS, {})))
    wrong = data[:change] if change < 0 else data + b"\0"
    with pytest.raises(ObjectError, match="bytes where the header says"):
        decode(wrong)
