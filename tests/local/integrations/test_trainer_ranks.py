"""A trainer of a library on two ranks is the learner that it is on one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from local.integrations.conftest import Alone
from local.integrations.numbers_data import SAMPLES
from local.integrations.ranks_script import STEP_BATCHES, TRAINERS, train
from local.integrations.test_ranks import torchrun
from local.one_shard import OneShard, one_shard

pytestmark = pytest.mark.filterwarnings("default")  # the libraries warn of their own parts
SCRIPT = Path(__file__).with_name("ranks_script.py")
STEPS, STOP_AFTER, EPOCH_STEPS = 20, 9, 5
PERIOD = 4  # of one_shard: the steps that are lost at most
ROUNDING = 1e-6  # of values near 1: the ranks' gradients are added in another order

Numbers = list[int]


def steps_of(folder: Path, ranks: int) -> list[Numbers]:
    """The numbers of each step, in order, of all ranks together."""
    seen = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    batches = [batch for together in zip(*seen, strict=True) for batch in together]
    return [
        sorted(number for batch in batches[at : at + STEP_BATCHES] for number in batch)
        for at in range(0, len(batches), STEP_BATCHES)
    ]


def on_two_ranks(library: str, folder: Path, stop_after: int = 0) -> list[Numbers]:
    done = torchrun(SCRIPT, library, str(folder), str(stop_after))
    assert done.returncode == 0, done.stderr
    return steps_of(folder, 2)


def on_one(library: str, folder: Path) -> list[Numbers]:
    train(library, folder, 0)
    return steps_of(folder, 1)


def told(shard: OneShard) -> tuple[Sequence[int], Sequence[float]]:
    """The tokens and losses of the steps, as the learner has reported them."""
    return [each["tokens"] for each in shard.steps], [each["loss"] for each in shard.steps]


@pytest.mark.parametrize("library", sorted(TRAINERS))
def test_two_ranks_export_what_one_does(library: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with one_shard(folders[0], steps=STEPS, lockstep=True) as one:
        whole = on_one(library, folders[0])
        values = load_file(one.exported())
    with one_shard(folders[1], steps=STEPS, lockstep=True) as two:
        assert on_two_ranks(library, folders[1]) == whole
        exported = load_file(two.exported())
    assert told(two)[0] == told(one)[0]
    assert told(two)[1] == pytest.approx(told(one)[1], rel=1e-4)
    assert exported.keys() == values.keys()
    for name, tensor in values.items():
        assert torch.allclose(exported[name], tensor, rtol=0, atol=ROUNDING), name
    epoch = [number for step in whole[:EPOCH_STEPS] for number in step]
    assert sorted(epoch) == list(range(SAMPLES))


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_one_rank_goes_on_with_the_batch_after_those_of_two(
    library: str, tmp_path: Path, alone: Alone
) -> None:
    with one_shard(tmp_path, steps=STEPS, lockstep=True) as again:
        first = on_two_ranks(library, tmp_path, STOP_AFTER)
        second = on_one(library, tmp_path)
    alone(STOP_AFTER + len(second))
    whole = on_one(library, tmp_path)
    assert first == whole[:STOP_AFTER]
    begun = [line["cursor"] for line in again.lines if line.get("event") == "start"][-1]
    assert STEP_BATCHES * (STOP_AFTER - PERIOD) <= begun <= STEP_BATCHES * STOP_AFTER
    assert second == whole[begun // STEP_BATCHES :][: len(second)]
    assert second
