"""A mistake of any rank is refused on every rank, in one sentence, and none of them hangs."""

import json
from pathlib import Path

from local.ranks.jobs import run_script

WANTED = {
    "flat_parameters": ("model: ", "FSDP1", "fully_shard"),
    "shards_that_do_not_tile": ("model.0.bias: ", "has a shard of shape", "Shard and Replicate"),
    "a_part_that_is_missing": (
        "model.",
        "do not make up the tensor",
        "give the Learner all modules",
    ),
    "another_shape": ("model.bias: ", "(4,) on rank 0, (5,) on 1", "on every rank"),
    "another_rate": ("optimizer: ", "lr: 0.5 on rank 0, 0.25 on 1", "same settings"),
    "nothing_to_train": ("model: ", "has no trainable parameter", "model that is trained"),
    "no_module": ("model: ", "rank 1: SGD is no torch.nn.Module", "Learner(model, optimizer)"),
    "an_optimizer_of_another_model": ("optimizer: ", "rank 1: SGD steps none", "on_adopt"),
}


def test_every_rank_says_the_same_with_field_and_remedy(tmp_path: Path) -> None:
    run_script("refusals_script.py", tmp_path)
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other
    assert one.keys() == WANTED.keys()
    for name, (field, problem, remedy) in WANTED.items():
        said = one[name]
        assert said.startswith(field), said
        assert problem in said
        assert remedy in said.partition(";")[2]
