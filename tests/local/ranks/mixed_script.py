"""A user's own script that trains one learner in the shape of its slot: alone or on several ranks.

SHAPES says for each slot its shape: `one`, `ddp` or `fsdp2`. A learner of several ranks is
torchrun, which starts it again. A step trains two halves of a batch: a learner of one process both,
one after the other, and of two ranks each its own. So all three compute the same, bit for bit.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.run as torchrun
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from atoll import Learner
from local.leftovers import shared_bytes
from local.lockstep_model import BATCH, MEETINGS, Model, batch, inner_optimizer, meet

RANKS = 2


def main() -> None:
    """Train until the job is final."""
    shapes = json.loads(os.environ["SHAPES"])
    shape = shapes[os.environ["ATOLL_SLOT"]]
    if shape != "one" and "RANK" not in os.environ:
        torchrun.main(["--standalone", f"--nproc-per-node={RANKS}", __file__])
        return
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank = 0
    if shape != "one":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        hosts = json.loads(os.environ.get("HOSTS", "{}")).get(os.environ["ATOLL_SLOT"], 1)
        os.environ["ATOLL_HOST"] = str(rank * hosts // RANKS)
    model = Model(seed=0)
    if shape == "fsdp2":
        fully_shard(model.hidden)
        fully_shard(model)
    optimizer = inner_optimizer(model)
    with Learner(model, optimizer) as learner:
        run_folder = Path(os.environ["ATOLL_TELEMETRY_DIR"])
        (run_folder / f"{learner.slot}.{rank}.pid").write_text(str(os.getpid()))
        (run_folder / f"{learner.slot}.{rank}.memory").write_text(str(shared_bytes()))
        trained = DistributedDataParallel(model) if shape == "ddp" else model
        while not learner.finished:
            if rank == 0 and "MEET" in os.environ and learner.own_steps in MEETINGS:
                meet(run_folder / f"meeting-{learner.own_steps}", learner.slot, len(shapes))
            optimizer.zero_grad()
            halves = (0, 1) if shape == "one" else (rank,)
            losses = [half_step(trained, learner.slot, learner.cursor, half) for half in halves]
            if shape == "one":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= RANKS
            optimizer.step()
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            learner.step(tokens=BATCH, loss=sum(losses) / len(losses))
        end = {name: whole(value) for name, value in model.state_dict().items()}
        end["steps"] = torch.tensor(learner.own_steps)
        torch.save(end, run_folder / f"{learner.slot}.{rank}.pt")
    if shape != "one":
        dist.destroy_process_group()


def half_step(model: nn.Module, slot: str, cursor: int, half: int) -> float:
    """Add the gradient of one half of the batch."""
    symbols, successors = (each.chunk(RANKS)[half] for each in batch(slot, cursor))
    loss = functional.cross_entropy(model(symbols), successors)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def whole(value: torch.Tensor) -> torch.Tensor:
    """The tensor that all ranks hold together."""
    full = getattr(value, "full_tensor", lambda: value)
    return full().detach().clone()


if __name__ == "__main__":
    main()
