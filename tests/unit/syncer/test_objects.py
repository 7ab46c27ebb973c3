import json
import struct
from collections.abc import Mapping

import pytest
import safetensors.torch
import torch

from atoll_protos.tensors import byte_view
from atoll_syncer.storage.objects import (
    ObjectError,
    decode,
    decode_header,
    encode_header,
    encode_parts,
)

torch.set_num_threads(1)
TENSORS = {
    "master": torch.arange(7, dtype=torch.float32),
    "base": torch.randn(3, 5).bfloat16(),
    "empty": torch.empty(0, 4),
}


def test_the_safetensors_library_reads_what_we_write() -> None:
    data = b"".join(encode_parts(TENSORS, {"format": "pt"}))
    read = safetensors.torch.load(data)
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(read[name], tensor)
        assert read[name].dtype == tensor.dtype


def test_we_read_what_the_safetensors_library_writes() -> None:
    data = safetensors.torch.save(TENSORS, {"who": "library"})
    tensors, metadata = decode(bytearray(data))
    assert metadata == {"who": "library"}
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)


def test_the_header_alone_says_where_everything_lies() -> None:
    data = b"".join(encode_parts(TENSORS, {"epoch": "3"}))
    header = encode_header({n: (t.dtype, tuple(t.shape)) for n, t in TENSORS.items()}, {})
    assert len(header) % 64 == 0
    contents = decode_header(data[:1024])
    assert contents.metadata == {"epoch": "3"}
    assert contents.byte_count == len(data)
    entry = contents.entries["base"]
    assert data[entry.start : entry.stop] == bytes(byte_view(TENSORS["base"]))


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
    data = bytearray(b"".join(encode_parts(TENSORS, {})))
    wrong = data[:change] if change < 0 else data + b"\0"
    with pytest.raises(ObjectError, match="bytes where the header says"):
        decode(wrong)


def test_metadata_is_text() -> None:
    metadata: Mapping[str, str] = decode_header(b"".join(encode_parts({}, {"a": "b"}))).metadata
    assert metadata == {"a": "b"}
