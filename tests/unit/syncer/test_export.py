import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from atoll_protos.job.companion import ADAPTER, FILE, METADATA, TENSOR, ExportTable
from atoll_protos.job.layout import Layout, TensorSpec, build_layout
from atoll_protos.transfer.arrays import BF16, Array
from atoll_syncer.storage import companions, export, files
from atoll_syncer.storage.export import FILE_BYTES_MAX, INDEXES, Export, ExportPart
from atoll_syncer.storage.objects import read_header
from atoll_syncer.storage.store import OBJECTS, FileStore, StoreCorrupt, StoreFull
from atoll_syncer.storage.versions import Collector

INDEX = INDEXES[0]

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


def assembled(
    folder: Path, *companion: list[bytes], run: str = "r1", limit: int = FILE_BYTES_MAX
) -> dict[str, Any]:
    """Make an export of it all; returns the metadata of its index."""
    parts = written_parts(folder, run)
    index = Export(folder, limit).assemble(run, LAYOUT, parts, companion)
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


# ------------------------------------------------------------ with a companion


def companion(table: ExportTable, tensors: dict[str, torch.Tensor]) -> list[bytes]:
    """A companion in parts, as it lies in the store."""
    data = safetensors.torch.save(tensors, {METADATA: table.to_json()})
    return [data[:100], data[100:]]


def text(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


KEYS = {"tied.weight": "embedding", **{spec.name: spec.name for spec in TENSORS}}
KEPT = {
    f"{TENSOR}counter": torch.tensor(3),
    f"{TENSOR}frozen": torch.randn(3, 5),
    f"{TENSOR}spectrum": torch.fft.fft(torch.arange(5.0)),
    f"{TENSOR}mask": torch.triu(torch.full((3, 3), -torch.inf), 1),
    f"{TENSOR}empty": torch.zeros(0, 3),
    f"{FILE}config.json": text(b"{}"),
    f"{FILE}sub/words.txt": text(b"a b"),
}


def test_a_companion_brings_tied_keys_what_does_not_travel_and_files(tmp_path: Path) -> None:
    table = ExportTable(keys=KEYS, absent={"extra": "is no tensor"})
    later = companion(ExportTable(), {f"{TENSOR}counter": torch.tensor(9)})
    metadata = assembled(tmp_path, companion(table, KEPT), later)
    found = exported(tmp_path)
    kept = {key.removeprefix(TENSOR) for key in KEPT if key.startswith(TENSOR)}
    assert found.keys() == KEYS.keys() | kept
    assert torch.equal(found["tied.weight"], found["embedding"])
    assert found["counter"] == 9, "what training has changed replaces what was first"
    for name in kept - {"counter"}:
        assert torch.equal(found[name], KEPT[f"{TENSOR}{name}"])
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    assert (tmp_path / "sub" / "words.txt").read_bytes() == b"a b"
    assert metadata["absent"] == {"extra": "is no tensor"}
    assert metadata["files"] == ["config.json", "sub/words.txt"]
    assert not (tmp_path / "parts").exists()


def test_another_runs_model_is_replaced_and_an_adapter_is_one_file_as_peft_reads_it(
    tmp_path: Path,
) -> None:
    assembled(tmp_path, run="r0")
    assert assembled(tmp_path, limit=10_000)["run"] == "r1"
    assert len(exported(tmp_path)) == len(TENSORS)
    assert not (tmp_path / "model.safetensors").exists()
    table = ExportTable(stem=ADAPTER, keys={f"base.{name}": name for name in KEYS.values()})
    assembled(tmp_path, companion(table, {}), run="r2", limit=10_000)
    found = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    assert found.keys() == {f"base.{name}" for name in KEYS.values()}
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["adapter_model.safetensors", "adapter_model.safetensors.index.json"]


def test_a_tensor_that_no_key_names_is_exported_under_its_own(tmp_path: Path) -> None:
    table = ExportTable(keys={"other": "norm", "nothing": "unknown"})
    assembled(tmp_path, companion(table, {}))
    assert exported(tmp_path).keys() == {spec.name for spec in TENSORS} - {"norm"} | {"other"}


@pytest.mark.parametrize(
    "damaged",
    [
        [b"nonsense"],
        *(
            companion(ExportTable(), {f"{FILE}{name}": text(b"x") for name in names})
            for names in (
                ("../../escape",),  # another folder
                ("model.safetensors.index.json",),
                ("x", "x/y"),  # a file that is a folder too
                ("parts",),  # the export's own
                ("x" * 300,),
            )
        ),
        [safetensors.torch.save({}, {METADATA: "{}"})],  # without a table
        companion(ExportTable(), KEPT)[:1],
    ],
    ids=range(8),
)
def test_what_is_no_companion_costs_no_export(tmp_path: Path, damaged: list[bytes]) -> None:
    folder = tmp_path / "export"
    assert assembled(folder, damaged)["absent"]
    assert exported(folder).keys() == {spec.name for spec in TENSORS}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export"]


def test_what_stands_in_the_way_of_a_file_costs_that_file_alone_rule_36(tmp_path: Path) -> None:
    (tmp_path / "notes" / "of the user").mkdir(parents=True)
    files = {f"{FILE}notes": text(b"x"), f"{FILE}notes.txt": text(b"y")}
    about = assembled(tmp_path, companion(ExportTable(), files))
    assert about["files"] == ["notes.txt"]
    assert "notes" in about["absent"]


def test_the_parts_of_a_companion_come_back_from_the_store_as_they_were(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.open()
    names = [companions.write_part(store, "r", 3, 0, data) for data in (b"one", b"two")]
    assert list(companions.read_parts(store, names)) == [b"one", b"two"]
    Collector(store).sweep({names[0]}, epoch=4)
    assert store.names(OBJECTS) == [names[0]], "what no entry names goes with its term"
