import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from atoll_protos.job.layout import Layout, TensorSpec, build_layout
from atoll_protos.transfer.arrays import BF16, Array
from atoll_syncer.storage import export, files
from atoll_syncer.storage.export import FILE_BYTES_MAX, INDEX, Export, ExportPart
from atoll_syncer.storage.files import StoreCorrupt, StoreFull
from atoll_syncer.storage.objects import read_header

TENSORS = [
    TensorSpec(name="embedding", shape=(1001, 13), dtype="float32", merge="mean"),
    TensorSpec(name="norm", shape=(), dtype="float32", merge="rda"),
    TensorSpec(name="a.weight", shape=(61, 31), dtype="bfloat16", merge="rda"),
    TensorSpec(name="b.weight", shape=(7, 5, 3), dtype="float16", merge="rda"),
    TensorSpec(name="c.weight", shape=(300, 11), dtype="float32", merge="rda"),
    TensorSpec(name="c.bias", shape=(300,), dtype="float32", merge="mean"),
]
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUT = build_layout(TENSORS, fragments=3, shards=2)


def model(layout: Layout) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        spec.name: torch.randn(spec.shape, generator=generator).bfloat16()
        for spec in layout.tensors
    }


def cut(layout: Layout, tensors: dict[str, torch.Tensor], shard: int) -> dict[int, Array]:
    """A shard's bases of a model."""
    return {
        owned.fragment: np.concatenate(
            [
                tensors[layout.tensors[p.tensor].name].float().numpy().reshape(-1)[p.start : p.stop]
                for p in owned.pieces
            ]
        ).astype(BF16)
        for owned in layout.shard_slices(shard)
    }


def written_parts(folder: Path, run: str = "r1") -> list[ExportPart]:
    return [
        Export(folder).write_part(run, shard, cut(LAYOUT, model(LAYOUT), shard))
        for shard in range(LAYOUT.shards)
    ]


def assembled(folder: Path, run: str = "r1", limit: int = FILE_BYTES_MAX) -> dict[str, Any]:
    """Make an export of it all; returns the metadata of its index."""
    parts = written_parts(folder, run)
    index = Export(folder, limit).assemble(run, LAYOUT, parts)
    metadata: dict[str, Any] = json.loads(index.read_text())["metadata"]
    return metadata


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """The model, as a reader of the Hugging Face layout finds it."""
    index = json.loads((folder / INDEX).read_text())
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        found = safetensors.torch.load_file(folder / file)
        assert set(found) == {n for n, f in index["weight_map"].items() if f == file}
        tensors |= found
    sizes = sum(t.numel() * t.element_size() for t in tensors.values())
    assert index["metadata"]["total_size"] == sizes
    return tensors


@pytest.mark.parametrize(("limit", "count"), [(1, 6), (10_000, 4), (60_000, 2), (5_000_000_000, 1)])
def test_the_export_is_the_model_whole_and_in_its_dtypes(
    tmp_path: Path, limit: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "READ_BYTES", 256)
    slices = [[s for s in LAYOUT.slices if any(p.tensor == t for p in s.pieces)] for t in range(6)]
    assert max(map(len, slices)) > 2
    assembled(tmp_path, limit=limit)
    found = exported(tmp_path)
    for spec in TENSORS:
        expected = model(LAYOUT)[spec.name].to(TORCH[spec.dtype])
        assert found[spec.name].dtype == expected.dtype
        assert torch.equal(found[spec.name], expected)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    many = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    assert names == (many if count > 1 else ["model.safetensors"])
    with (tmp_path / names[0]).open("rb") as file:
        assert read_header(file).metadata == {"format": "pt"}


def test_a_large_model_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file or tensor is ever in memory as a whole."""
    monkeypatch.setattr(export, "READ_BYTES", 64 << 10)
    monkeypatch.setattr(files, "READ_BYTES", 64 << 10)
    large = [
        TensorSpec(name=name, shape=(2048, 512), dtype="float32", merge="mean") for name in "abc"
    ]
    layout = build_layout(large, fragments=2, shards=1)
    parts = [Export(tmp_path).write_part("r1", 0, cut(layout, model(layout), 0))]
    tracemalloc.start()
    try:
        Export(tmp_path).assemble("r1", layout, parts)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    for name, tensor in exported(tmp_path).items():
        assert torch.equal(tensor, model(layout)[name].float())


def test_parts_are_removed_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    parts = written_parts(tmp_path)
    Export(tmp_path).assemble("r1", LAYOUT, parts)
    files_before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert not any("parts" in str(path.relative_to(tmp_path)) for path in files_before)
    assert Export(tmp_path).assemble("r1", LAYOUT, parts) == tmp_path / INDEX
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == files_before


def test_a_crash_on_the_way_leaves_no_index_and_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = written_parts(tmp_path)
    assert written_parts(tmp_path) == parts  # again it is the same file

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(export, "_write_index", crash)
        with pytest.raises(Crash):
            Export(tmp_path, 10_000).assemble("r1", LAYOUT, parts)
    assert not (tmp_path / INDEX).exists()
    (tmp_path / ".model-00001-of-00001.safetensors.0.tmp").write_bytes(b"of a killed process")
    Export(tmp_path, 10_000).assemble("r1", LAYOUT, parts)
    assert len(exported(tmp_path)) == len(TENSORS)
    assert not list(tmp_path.glob(".*"))


def test_a_changed_part_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    parts = written_parts(tmp_path)
    path = tmp_path / parts[1].file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"r1-shard-001\.safetensors: its sha256 is"):
        Export(tmp_path).assemble("r1", LAYOUT, parts)
    assert not list(tmp_path.glob("*.safetensors*"))


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    path = small_disk / "file"
    path.write_bytes(b"old")
    with pytest.raises(StoreFull, match="file"), files.whole_file(path) as file:
        file.write(bytes(1_500_000))
    assert path.read_bytes() == b"old"
    assert [p.name for p in small_disk.iterdir()] == ["file"]


def test_another_runs_model_is_replaced(tmp_path: Path) -> None:
    assembled(tmp_path, run="r0")
    assert assembled(tmp_path, run="r1", limit=10_000)["run"] == "r1"
    assert len(exported(tmp_path)) == len(TENSORS)
    assert not (tmp_path / "model.safetensors").exists()
