"""Two ranks that enter a Learner with a mistake, one mistake after another.

    python refusals_script.py FOLDER

The learner is alone, so nothing is started. FOLDER/RANK.json has the error of every mistake on that
rank. The ranks are forks of this process.
"""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim import SGD

from atoll import Learner, SpecError
from local.forked import script_of
from local.ranks.models import misplaced

RANKS = 2
SECONDS_MAX = 600.0  # of a collective in which a rank is missing


def two_layers() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def flat_parameters() -> Learner:
    """FSDP1."""
    cpu = torch.device("cpu")
    return Learner(FullyShardedDataParallel(two_layers(), device_id=cpu))


def shards_that_do_not_tile() -> Learner:
    """A local tensor that is larger than its placement says."""
    model = two_layers()
    model[0].bias = nn.Parameter(misplaced(init_device_mesh("cpu", (RANKS,)), 2 * RANKS + 2))
    return Learner(model)


def a_part_that_is_missing() -> Learner:
    """Rank 1 gives only the first of its two layers."""
    model = two_layers()
    fully_shard(model)
    return Learner(model[0] if dist.get_rank() else [model[0], nn.ModuleDict({"1": model[1]})])


def another_shape() -> Learner:
    """Of one tensor."""
    return Learner(nn.Linear(4, 4 + dist.get_rank()))


def another_rate() -> Learner:
    """On rank 1."""
    model = two_layers()
    return Learner(model, SGD(model.parameters(), lr=0.5 - 0.25 * dist.get_rank()))


def nothing_to_train() -> Learner:
    """On any rank."""
    return Learner(two_layers().requires_grad_(False))


def no_module() -> Learner:
    """On rank 1 alone, which sees it before it meets the other."""
    model = two_layers()
    return Learner(SGD(model.parameters(), lr=1.0) if dist.get_rank() else model)  # type: ignore[arg-type]


def an_optimizer_of_another_model() -> Learner:
    """On rank 1 alone."""
    model = two_layers()
    return Learner(model, SGD((two_layers() if dist.get_rank() else model).parameters(), lr=1.0))


MISTAKES: Mapping[str, Callable[[], Learner]] = {
    each.__name__: each
    for each in (
        flat_parameters,
        shards_that_do_not_tile,
        a_part_that_is_missing,
        another_shape,
        another_rate,
        nothing_to_train,
        no_module,
        an_optimizer_of_another_model,
    )
}


def be(rank: int, folder: Path) -> None:
    """One rank; at the end both enter without a mistake, also where one has nothing to train."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=SECONDS_MAX),
    )
    said = {}
    for name, make in MISTAKES.items():
        learner = make()
        try:
            learner.open()
        except SpecError as error:
            said[name] = str(error)
    Learner(two_layers()).open().close()
    stage = nn.ModuleDict({str(rank): two_layers().requires_grad_(rank == 1)})
    learner = Learner(stage, SGD(stage.parameters(), lr=1.0) if rank else None)
    learner.schedule(lambda progress: 1.0 - progress)
    learner.open().close()
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    script_of(RANKS, be)
