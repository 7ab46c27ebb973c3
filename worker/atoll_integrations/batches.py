"""What a trainer's batch counts for, and the seed of the data of one slot."""

import zlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

SEEDS = 2**31
TEXT_DIMENSIONS = 2  # samples, length


def tokens_in(batch: Any, main_input: str = "input_ids") -> int:
    """The tokens of a batch; of a batch without tokens, its samples. 1 or more.

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
    """A seed for the order of the data of a slot in an epoch, 0 to 2**31 - 1, as after a restart.

    The seeds of two slots lie far apart, since that of epoch e is often seed + e.
    """
    return (seed + zlib.crc32(slot.encode()) + epoch) % SEEDS
