"""An export of a job that trains: its files."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.job.run_file import Region, RunFile, Sync
from atoll_protos.transfer.arrays import BF16, F32
from atoll_syncer.duties.storing import PIECE_BYTES, Keeping
from atoll_syncer.edges.exporting import Received, assemble
from atoll_syncer.storage.files import StoreCorrupt
from unit.syncer.values_side import LAYOUT, TENSORS, Bench

SYNC = Sync(fragments=2)
JOB = RunFile(job="x", regions=(Region(name="a", learners=1),), steps=20, sync=SYNC)


def pieces(folder: Path) -> tuple[Bench, list[pb.ExportPiece]]:
    """What a shard sends whose slice 1 has had its last version."""
    bench = Bench(folder, SYNC)
    bench.seed()
    bench.commit(1, [bench.offer(1, "a-0", 1)], last=True)
    bench.history.run = "run"
    state: Any = SimpleNamespace(history=bench.history, number=0, layout=LAYOUT)
    state.clock = SimpleNamespace(tick=7)
    machine: Any = SimpleNamespace(store=bench.store)
    keeping = Keeping(machine, SimpleNamespace())  # type: ignore[arg-type]
    return bench, list(keeping.export_pieces(state, bench.values))


def received(folder: Path, sent: Sequence[pb.ExportPiece]) -> Received:
    shard = Received(folder, 0)
    for piece in sent:
        shard.take(piece)
    return shard


def test_an_export_has_the_values_that_learners_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the end of a job some slices have had their last version, and others not.

    The folder is named as a person names it, from where the person is.
    """
    monkeypatch.chdir(tmp_path)
    bench, sent = pieces(tmp_path / "store")
    shard = received(Path("export"), sent)
    assert (shard.first.run, shard.first.tick) == ("run", 7)
    assert max(len(piece.data) for piece in sent) <= PIECE_BYTES
    assemble(JOB, [shard], 7)
    found = load_file(tmp_path / "export" / "model.safetensors")
    assert found.keys() == {spec.name for spec in TENSORS}
    assert [path.name for path in (tmp_path / "export").iterdir() if path.is_dir()] == []
    exported = bench.values.exported()
    assert not np.array_equal(exported[1], exported[1].astype(BF16).astype(F32))
    for fragment, values in exported.items():
        for each in LAYOUT.slice(0, fragment).pieces:
            tensor = found[LAYOUT.tensors[each.tensor].name].flatten()
            stop = each.offset + each.element_count
            part = tensor[each.start : each.start + each.element_count]
            assert np.array_equal(part, values[each.offset : stop].astype(F32))


def test_a_file_that_came_damaged_is_no_export(tmp_path: Path) -> None:
    sent = pieces(tmp_path / "store")[1]
    sent[1].data = sent[1].data[:-1] + b"x"
    with pytest.raises(StoreCorrupt):
        received(tmp_path / "export", sent)


TAKEN = """
import asyncio, sys
from pathlib import Path
from atoll_syncer.edges import exporting

async def take(run_file, reach, out):
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"values of " + reach.endpoints[1].encode())
    print("a line of a library's", file=sys.stderr)
    return 7

exporting.take = take
exporting.main()
"""


def test_an_export_may_go_to_the_standard_output_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """So `kubectl exec` brings the model of a job to who asks for it."""
    file = tmp_path / "run.json"
    file.write_text(
        RunFile(job="tiny", regions=(Region(name="a", learners=1),), steps=9, shards=2).to_json()
    )
    words = ["--run-file", str(file), "--endpoints", "s-0:1,s-1:1", "--out", "-"]
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, *words],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        model = tar.extractfile(next(x for x in tar if x.name.endswith("model.safetensors")))
        assert model is not None
        assert model.read() == b"values of s-1:1"
    assert b"the model at tick 7" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
