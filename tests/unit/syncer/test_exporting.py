"""An export of a job that trains: the files that come of what shards publish."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos import arrays
from atoll_protos.frames import Whole
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
