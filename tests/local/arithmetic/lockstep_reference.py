"""DiLoCo by all-reduce over gloo (2311.08105, algorithm 1): one rank of the equality test."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from local.lockstep_model import (
    LEARNERS,
    OUTER_LEARNING_RATE,
    OUTER_MOMENTUM,
    PERIOD,
    ROUNDS,
    Model,
    inner_optimizer,
    inner_step,
)


def main(rank: int, meeting: Path, slot: str, out: Path) -> None:
    """Train; rank 0 writes the shared parameters."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=LEARNERS)
    outer, local = Model(seed=0), Model(seed=0)
    outer_optimizer = torch.optim.SGD(
        outer.parameters(), lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True
    )
    inner = inner_optimizer(local)
    for step in range(ROUNDS * PERIOD):
        inner_step(local, inner, slot, step)
        if (step + 1) % PERIOD == 0:
            outer_round(outer, local, outer_optimizer)
    dist.destroy_process_group()
    if rank == 0:
        save_file(dict(outer.state_dict()), out)


@torch.no_grad()
def outer_round(outer: Model, local: Model, optimizer: torch.optim.Optimizer) -> None:
    """The mean of `outer - local` over the ranks is the outer gradient."""
    for theta, own in zip(outer.parameters(), local.parameters(), strict=True):
        theta.grad = theta - own
        dist.all_reduce(theta.grad)
        theta.grad /= LEARNERS
    optimizer.step()
    for theta, own in zip(outer.parameters(), local.parameters(), strict=True):
        own.copy_(theta)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
