"""What a trainer of a job must not do: have several processes, or end before the job does."""

from typing import Final

import atoll

NO_EARLY_STOP: Final = (
    "{} is left out: a learner trains until its job is over, and the metric of one says nothing of"
    " the shared model; end the job by its length, or with an evaluator's figures in view"
)


def check_one(callback: str, processes: int) -> None:
    """Raises SpecError if a trainer has several processes (torchrun, accelerate launch)."""
    if processes > 1:
        raise atoll.SpecError(
            callback,
            f"the trainer has {processes} processes, and its data are divided for one",
            "start one process for each learner, with one device (atoll run --gpus-per-learner 1); "
            "a loop of your own may have several ranks: atoll.Learner on every rank",
        )
