"""Refuses a trainer of several processes: the callbacks provide for one process a learner."""

import atoll


def check_one(callback: str, processes: int) -> None:
    """Raises SpecError if a trainer has several processes (torchrun, accelerate launch)."""
    if processes > 1:
        raise atoll.SpecError(
            callback,
            f"the trainer has {processes} processes, and its data are divided for one",
            "start one process for each learner, with one device (atoll run --gpus-per-learner 1); "
            "a loop of your own may have several ranks: atoll.Learner on every rank",
        )
