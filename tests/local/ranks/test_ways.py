"""What people put around a training step does not keep ranks from the job's values."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from local.one_shard import one_shard
from local.ranks.jobs import run_script
from local.ranks.ways_script import RANKS, Model, questions

STEPS = 24


def test_compiled_checkpointed_accumulated_scaled_and_evaluated_steps_end_with_the_exported_values(
    tmp_path: Path,
) -> None:
    with one_shard(tmp_path, steps=STEPS) as shard:
        run_script("ways_script.py", tmp_path)
        exported = load_file(shard.exported())
        assert shard.commits
    model = Model()
    first = dict(model.state_dict())
    assert exported.keys() == first.keys()
    assert not torch.equal(exported["head.weight"], first["head.weight"])
    model.load_state_dict(exported, strict=True)
    expected = model.to(torch.bfloat16)(questions().to(torch.bfloat16))
    ends = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    for end in ends:
        assert torch.equal(end["logits"], expected)
        assert end["skipped"] > 0
    assert ends[0]["made"] == ends[1]["made"] >= STEPS
