"""The export of a model that is cut over ranks is that of the whole model."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from local.one_shard import SLOT, one_shard
from local.ranks import shapes
from local.ranks.export_script import Model
from local.ranks.jobs import run_script

STEPS = 24
FUSED = "fused.both.weight"  # its own name: a hook saves two others in its place


def test_it_has_frozen_and_tied_tensors_and_counters_and_loads_strictly(tmp_path: Path) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        said = run_script("export_script.py", tmp_path)
        exported = load_file(shard.exported())
        assert shard.commits
    model, first = Model(), Model().state_dict()
    model.load_state_dict(exported, strict=True)
    ends = torch.load(tmp_path / "whole.pt", weights_only=True)
    exported["fused.one.weight"], exported["fused.two.weight"] = exported.pop(FUSED).chunk(2)
    assert exported.keys() == ends.keys() == first.keys()
    for key, value in ends.items():
        assert torch.equal(exported[key], value), key
    assert torch.equal(exported["base.weight"], first["base.weight"])
    assert not torch.equal(exported["words.weight"], first["words.weight"])
    assert exported["norm.num_batches_tracked"] > 0
    assert "the export will" not in said


def test_of_a_pipeline_it_has_what_any_stage_has_and_loads_strictly(tmp_path: Path) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        more = {"SHAPES": json.dumps({SLOT: "pipeline"}), "STEP_SECONDS": "0.03"}
        said = run_script("shapes_script.py", **more)
        exported = load_file(shard.exported())
    ends: dict[str, torch.Tensor] = {}
    for rank in range(shapes.RANKS["pipeline"]):
        ends |= torch.load(tmp_path / f"{SLOT}.{rank}.pt", weights_only=True)
    model, first = shapes.Model(), shapes.Model().state_dict()
    model.load_state_dict(exported, strict=True)
    assert exported.keys() == ends.keys() == first.keys()
    for key, value in ends.items():
        assert torch.equal(exported[key], value), key
    for key in ("base.linear.weight", "base.kind"):  # of a stage that the head does not have
        assert torch.equal(exported[key], first[key])
    assert not torch.equal(exported["head.weight"], first["head.weight"])
    assert "the export will" not in said
