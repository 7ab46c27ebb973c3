"""What the callbacks share: batches, processes, schedules and steps of a trainer.

A trainer moves its learning-rate schedules itself, once per step of its own. The learner moves them
instead (`Learner.schedule`), and what the trainer has (`NotStepped`) may be stepped at will.
"""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, distributed

import atoll

SEEDS = 2**31
TEXT_DIMENSIONS = 2  # samples, length


def tokens_in(batch: Any, main_input: str = "input_ids") -> int:
    """Return the tokens of a batch; of a batch without tokens, its samples. 1 or more.

    The first tensor counts, in a mapping the one named `main_input` if it is there. Integers of
    shape [samples, length] are tokens, padding among them, so that nothing waits for the device; of
    every other tensor the first dimension counts.
    """
    tensor = _first_tensor(batch, main_input)
    if tensor is None or not tensor.ndim:
        return 1
    is_text = tensor.ndim == TEXT_DIMENSIONS and not (
        tensor.is_floating_point() or tensor.is_complex()
    )
    return max(1, tensor.numel() if is_text else tensor.shape[0])


def _first_tensor(batch: Any, main_input: str) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        parts = [batch[main_input]] if main_input in batch else list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        return None
    found = (_first_tensor(part, main_input) for part in parts)
    return next((tensor for tensor in found if tensor is not None), None)


def slot_seed(seed: int, slot: str, epoch: int = 0) -> int:
    """Return a seed, 0 to 2**31 - 1, for a slot's order of the data in an epoch, also restarted.

    The seeds of two slots lie far apart, since that of epoch e is often seed + e.
    """
    return (seed + zlib.crc32(slot.encode()) + epoch) % SEEDS


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
        """Return the tokens of all batches, and the mean loss of ranks that have one, or None.

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
    """Raise SpecError if a trainer divides its work for fewer processes than there are ranks.

    Each of them would train as if it were alone, on the same data.
    """
    if known != (ranks := world_size()):
        raise atoll.SpecError(callback, f"the trainer knows {known} of {ranks} processes", remedy)


def world_size() -> int:
    started = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if started else 1


def refuse(callback: str, parallel: str, works: str) -> None:
    """Raise SpecError for a way of a trainer to have several processes that is not supported."""
    raise atoll.SpecError(callback, f"does not train with {parallel}", f"use {works}")


class NotStepped:
    """A scheduler as its trainer sees it: neither `step()` nor a checkpoint moves it."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *arguments: Any, **keywords: Any) -> None:
        """Nothing: the learner has moved the schedule to the job's tick."""

    def load_state_dict(self, state: Any) -> None:
        """Nothing: the position is the job's, not that of a checkpoint."""

    def restore_rates(self) -> None:
        """Put the schedule's own rates into the optimizer: a checkpoint may have put its there."""
        if not hasattr(self.scheduler, "get_last_lr"):
            return
        rates = self.scheduler.get_last_lr()
        for group, rate in zip(self.scheduler.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # asked for before it is set, by pickle and copy
            raise AttributeError(name)
        return getattr(self.scheduler, name)


class EveryTicks(NotStepped):
    """A scheduler that moves once in `period` steps: one of epochs, or with a frequency."""

    def __init__(self, scheduler: Any, period: int) -> None:
        super().__init__(scheduler)
        self.period = period
        self.ticks = 0
        # The length of a scheduler that has one, in ticks as everything else here.
        own = getattr(scheduler, "total_steps", None)
        self.total_steps = None if own is None else own * period

    def step(self, *arguments: Any, **keywords: Any) -> None:
        self.ticks += 1
        if self.ticks % self.period == 0 and self.ticks != self.total_steps:
            self.scheduler.step(*arguments, **keywords)


class OptimizerSteps:
    """Watches optimizers by torch's own hook; `taken` until `clear()` says that it was seen.

    GradScaler does not call an optimizer whose gradients are not finite. A fused one it does call,
    with `found_inf`, and the kernel skips the step.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self.taken = False
        self._hooks = [
            unwrapped(optimizer).register_step_post_hook(self._note) for optimizer in optimizers
        ]

    def clear(self) -> None:
        self.taken = False

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, optimizer: Any, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        self.taken |= found_inf is None or not float(found_inf)


def unwrapped(optimizer: Any) -> Any:
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
