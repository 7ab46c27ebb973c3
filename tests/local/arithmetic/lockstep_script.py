"""A user's own script, as spec.learner.template starts it: one learner of the equality test."""

import os
import time
from pathlib import Path

import torch

from atoll import Learner
from local.lockstep_model import BATCH, LEARNERS, Model, inner_optimizer, inner_step

MEETINGS = (0, 10)  # steps: a joiner would enter at the other's tick; all before a hand-over
MEET_SECONDS_MAX = 600.0


def main() -> None:
    """Train until the job is final."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = Model(seed=0)
    optimizer = inner_optimizer(model)
    with Learner(model, optimizer) as learner:
        while not learner.finished:
            if learner.own_steps in MEETINGS:
                meet(Path(f"{os.environ['MEETING']}-{learner.own_steps}"), learner.slot)
            loss = inner_step(model, optimizer, learner.slot, learner.cursor)
            learner.step(tokens=BATCH, loss=loss)


def meet(folder: Path, slot: str) -> None:
    """Wait for the other learner, so that already the first round has both."""
    folder.mkdir(exist_ok=True)
    (folder / slot).touch()
    deadline = time.monotonic() + MEET_SECONDS_MAX
    while len(list(folder.iterdir())) < LEARNERS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the other learner did not come to {folder}")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
