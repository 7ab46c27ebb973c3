"""The processes of a trainer, which are the ranks of one learner, and what none of them may do."""

from typing import Final

import torch
from torch import Tensor, distributed

import atoll

NO_EARLY_STOP: Final = (
    "{} is left out: a learner trains until its job is over, and the metric of one says nothing of"
    " the shared model; end the job by its length, or with an evaluator's figures in view"
)


class Ranks:
    """All processes of `torch.distributed`, once a trainer has begun it; one if it has none.

    Every rank has batches of its own, and makes the same calls.
    """

    def __init__(self) -> None:
        self.size = world_size()
        self._words: distributed.ProcessGroup | None = None
        if self.size > 1:
            # Of gloo, so that a number is known without a wait for the device.
            words = distributed.new_group(backend="gloo")
            assert isinstance(words, distributed.ProcessGroup), "every rank is in it"
            self._words = words

    def together(
        self, tokens: int, loss: Tensor | float | None, device: torch.device
    ) -> tuple[int, Tensor | float | None]:
        """The tokens of all batches, and the mean loss of the ranks that have one; None if none.

        `loss`: one element, on `device`, where the mean is computed too; nothing waits for it.
        """
        if self._words is None:
            return tokens, loss
        counts = torch.tensor([tokens, int(loss is not None)])
        distributed.all_reduce(counts, group=self._words)
        trained, losses = counts.tolist()
        mean = torch.zeros((), device=device)
        if losses:
            if loss is not None:
                mean += loss
            distributed.all_reduce(mean)
        return trained, mean / losses if losses else None


def check_all(callback: str, known: int, remedy: str) -> None:
    """Raises SpecError if a trainer divides its work for fewer processes than there are ranks.

    Each of them would train as if it were alone, on the same data.
    """
    if known != (ranks := world_size()):
        raise atoll.SpecError(callback, f"the trainer knows {known} of {ranks} processes", remedy)


def world_size() -> int:
    started = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if started else 1


def refuse(callback: str, parallel: str, works: str) -> None:
    """Raises SpecError for a way of a trainer to have several processes that is not supported."""
    raise atoll.SpecError(callback, f"does not train with {parallel}", f"use {works}")
