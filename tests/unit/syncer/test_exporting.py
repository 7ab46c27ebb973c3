"""An export of a job that trains: the files that come of what shards publish."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.frames import Whole
from atoll_protos.run import Region, RunFile
from atoll_syncer.exporting import Target
from unit.syncer.values_side import LAYOUT


def test_slices_come_as_bases_and_those_that_are_final_already_in_f32(tmp_path: Path) -> None:
    """Near the end of a job some slices have had their last version, and others not."""
    target = Target(tmp_path / "export", "run", LAYOUT, pb.BF16)
    given: dict[str, torch.Tensor] = {}
    for fragment, encoding in enumerate((pb.BF16, pb.F32)):
        owned = LAYOUT.slice(0, fragment)
        values = np.random.default_rng(fragment).standard_normal(owned.element_count, np.float32)
        publish = pb.Publish(version=pb.SliceVersion(slice=fragment))
        head = pb.Transfer(publish=publish, encoding=encoding)
        payload = bytearray(arrays.pack(values, encoding, owned.form))
        target.add_slice(0, Whole(head, payload))
        for piece in owned.pieces:
            part = torch.from_numpy(values[piece.offset : piece.offset + piece.element_count])
            exact = encoding == pb.F32 or piece.offset < owned.form.exact
            name = LAYOUT.tensors[piece.tensor].name
            earlier = given.get(name, torch.empty(0))
            given[name] = torch.cat((earlier, part if exact else part.bfloat16().float()))
    target.finish(tick=7)
    found = load_file(tmp_path / "export" / "model.safetensors")
    for name, tensor in found.items():
        assert tensor.dtype is torch.float32
        assert torch.equal(tensor.flatten(), given[name]), name


TAKEN = """
import asyncio, sys
from pathlib import Path
from atoll_syncer import exporting

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
        tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out/model.safetensors").read_bytes() == b"values of s-1:1"
    assert b"the model at tick 7" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
