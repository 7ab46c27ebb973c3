"""A user's own script, as spec.learner.template starts it: one learner of the equality tests.

With HELD, a folder, it waits half-way until somebody else has come there too.
"""

import os
from pathlib import Path

import torch

from atoll import Learner
from local.lockstep_model import (
    BATCH,
    LEARNERS,
    MEETINGS,
    PERIOD,
    ROUNDS,
    Model,
    inner_optimizer,
    inner_step,
    meet,
)

HELD_AT = PERIOD * ROUNDS // 2


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
            if learner.own_steps == HELD_AT and "HELD" in os.environ:
                meet(Path(os.environ["HELD"]), learner.slot, LEARNERS + 1)
            loss = inner_step(model, optimizer, learner.slot, learner.cursor)
            learner.step(tokens=BATCH, loss=loss)


if __name__ == "__main__":
    main()
