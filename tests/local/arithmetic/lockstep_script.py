"""A user's own script, as spec.learner.template starts it: one learner of the equality test."""

import os
from pathlib import Path

import torch

from atoll import Learner
from local.lockstep_model import BATCH, LEARNERS, MEETINGS, Model, inner_optimizer, inner_step, meet


def main() -> None:
    """Train until the job is final."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = Model(seed=0)
    optimizer = inner_optimizer(model)
    with Learner(model, optimizer) as learner:
        while not learner.finished:
            if learner.own_steps in MEETINGS:
                meeting = Path(f"{os.environ['MEETING']}-{learner.own_steps}")
                meet(meeting, learner.slot, LEARNERS)
            loss = inner_step(model, optimizer, learner.slot, learner.cursor)
            learner.step(tokens=BATCH, loss=loss)


if __name__ == "__main__":
    main()
