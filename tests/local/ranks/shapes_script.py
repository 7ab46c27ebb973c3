"""A user's own script that trains one learner in the shape of its slot (shapes.py).

SHAPES says for each slot its shape, HOSTS on how many hosts its ranks say that they are. The ranks
are forks of this process, so that torch is imported once; with SINGLE the learner is this process,
which computes the same.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from atoll import Learner
from local.forked import to_their_end
from local.lockstep_model import BATCH, MEETINGS, batch, meet
from local.ranks.mixed_script import whole
from local.ranks.shapes import RANKS, trainer_of


def be(rank: int, ranks: int, shape: str, meeting: str) -> None:
    """One rank, until the job is final."""
    if ranks > 1:
        os.environ["ATOLL_HOST"] = str(rank * int(os.environ.get("HOSTS", "1")) // ranks)
        store = f"file://{meeting}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    torch.use_deterministic_algorithms(True)
    trainer = trainer_of(shape, single=ranks == 1)
    trained = [each for part in trainer.parts for each in part.parameters() if each.requires_grad]
    optimizers = [
        torch.optim.AdamW(each, lr=2e-3, eps=1e-3, weight_decay=0.1) for each in [trained] if each
    ]
    model = list(trainer.parts) if len(trainer.parts) > 1 else trainer.parts[0]
    with Learner(model, optimizers) as learner:
        run_folder = Path(os.environ["ATOLL_TELEMETRY_DIR"])
        while not learner.finished:
            if rank == 0 and learner.own_steps in MEETINGS:
                learners = len(json.loads(os.environ["SHAPES"]))
                meet(run_folder / f"meeting-{learner.own_steps}", learner.slot, learners)
            for part in trainer.parts:
                part.zero_grad()
            loss = trainer.backward(batch(learner.slot, learner.cursor))
            for optimizer in optimizers:
                optimizer.step()
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            learner.step(tokens=BATCH, loss=loss)
        end: dict[str, Tensor] = {}
        for part in trainer.parts:
            end |= {name: whole(value) for name, value in part.state_dict().items()}
        torch.save(end, run_folder / f"{learner.slot}.{rank}.pt")
    if ranks > 1:
        dist.destroy_process_group()


def main() -> int:
    shape = json.loads(os.environ["SHAPES"])[os.environ["ATOLL_SLOT"]]
    ranks = 1 if "SINGLE" in os.environ else RANKS[shape]
    with tempfile.TemporaryDirectory() as meeting:
        return to_their_end(ranks, be, ranks, shape, meeting)


if __name__ == "__main__":
    sys.exit(main())
