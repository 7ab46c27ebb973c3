"""A whole checkpoint has its model beside it, as an export has it (rule 42)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from atoll_protos.job.run_file import Sync
from atoll_protos.transfer.arrays import DTYPES, F32
from atoll_protos.transfer.codecs import Wire
from atoll_syncer.checkpoints import copies
from atoll_syncer.checkpoints.restoring import render
from atoll_syncer.storage.export import INDEX
from atoll_syncer.storage.files import FileStore, StoreCorrupt, StoreUnavailable, files_in_order
from unit.syncer.checkpoint_side import RUN, Parent, a_place


def rendered(parent: Parent, place: FileStore, folder: Path, step: int = 40) -> Path:
    render(place, parent.attempt(0, step), folder / "scratch", parent.sync.wire_down)
    assert list((folder / "scratch").iterdir()) == []
    return place.root / copies.model_name(step)


@pytest.mark.parametrize("wire", [Wire.F32, Wire.BF16, Wire.INT8])
def test_the_model_has_what_learners_hold_of_every_tensor(tmp_path: Path, wire: Wire) -> None:
    parent, place = Parent(tmp_path, sync=Sync(wire_down=wire)), a_place(tmp_path)
    parent.checkpoint(place)
    model = rendered(parent, place, tmp_path)
    about = json.loads((model / INDEX).read_text())["metadata"]
    assert (about["run"], about["tick"]) == (RUN, 40)
    with safe_open(model / "model.safetensors", "np") as found:
        assert {*found.keys()} == {each.name for each in parent.layout.tensors}
        for tensor, master in zip(parent.layout.tensors, parent.whole["master"], strict=True):
            values = found.get_tensor(tensor.name).astype(F32).ravel()
            assert found.get_tensor(tensor.name).dtype == DTYPES[tensor.dtype]
            assert np.allclose(values, master, rtol=2**-7)
            assert wire is not Wire.F32 or np.array_equal(
                values, master.astype(DTYPES[tensor.dtype]).astype(F32)
            )


def test_a_model_that_is_there_stays_and_one_that_was_cut_short_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    with monkeypatch.context() as during:

        def away(source: Path, target: Path) -> None:
            if source.name == INDEX:
                raise OSError("a full disk")
            shutil.copy(source, target)

        during.setattr(shutil, "move", away)
        with pytest.raises(StoreUnavailable):
            render(place, parent.attempt(0, 40), tmp_path / "scratch", parent.sync.wire_down)
    model = place.root / copies.model_name(40)
    assert [each.name for each in model.iterdir()] == ["model.safetensors"]
    rendered(parent, place, tmp_path)
    before = {each: each.stat().st_mtime_ns for each in files_in_order(model)}
    assert [each.name for each in before] == ["model.safetensors", INDEX]
    rendered(parent, place, tmp_path)
    assert {each: each.stat().st_mtime_ns for each in files_in_order(model)} == before


def test_of_a_damaged_part_no_model_is_made(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    parent.checkpoint(place)
    path = place.root / "step-40/1" / parent.histories[1].heads[2].object
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(StoreCorrupt):
        render(place, parent.attempt(0, 40), tmp_path / "scratch", parent.sync.wire_down)
    assert not (place.root / copies.model_name(40)).exists()


def test_a_model_goes_with_its_checkpoint(tmp_path: Path) -> None:
    parent, place = Parent(tmp_path), a_place(tmp_path)
    for step in (40, 60):
        parent.checkpoint(place, step)
        rendered(parent, place, tmp_path, step)
    for shard in range(2):
        copies.prune(place, parent.attempt(shard, 60), 1)
    assert [each.name for each in place.root.iterdir()] == ["step-60"]
    assert not copies.is_taken(place, parent.attempt(0, 60, run="another"))
    assert not (place.root / copies.model_name(60)).exists()


def test_the_index_of_a_model_comes_last(tmp_path: Path) -> None:
    for name in ("notes.txt", INDEX, "model.safetensors", "a/z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files_in_order(tmp_path)[-1].name == INDEX
