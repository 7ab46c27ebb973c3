"""A learner of the runs that are compared: in lock step, and half-way it waits to be let on."""

import os
import time
from pathlib import Path

import torch

from atoll import Learner
from local.lockstep_model import (
    BATCH,
    LEARNERS,
    MEET_SECONDS_MAX,
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
            if learner.own_steps == HELD_AT:
                wait_for(Path(os.environ["LET_ON"]))
            loss = inner_step(model, optimizer, learner.slot, learner.cursor)
            learner.step(tokens=BATCH, loss=loss)


def wait_for(file: Path) -> None:
    """Wait until the test has made it."""
    deadline = time.monotonic() + MEET_SECONDS_MAX
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has made {file}")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
