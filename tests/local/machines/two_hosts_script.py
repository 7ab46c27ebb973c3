"""A user's own script: one learner of the equality test whose ranks may be on several machines."""

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from atoll import Learner
from local.lockstep_model import BATCH, Model, batch, inner_optimizer


def main() -> None:
    """Train until the job is final."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model = Model(seed=0)
    optimizer = inner_optimizer(model)
    with Learner(model, optimizer) as learner:
        parallel = DistributedDataParallel(model)
        while not learner.finished:
            symbols, successors = batch(f"{learner.slot}/{rank}", learner.cursor)
            loss = functional.cross_entropy(parallel(symbols), successors)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH * ranks, loss=loss)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
