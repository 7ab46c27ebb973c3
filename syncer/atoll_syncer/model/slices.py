"""The tensors of one slice between two commits; the only values of a shard that need torch."""

from dataclasses import dataclass

import torch

from atoll_protos import tensors
from atoll_protos.codecs import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTensors:
    """A slice between two commits. A commit writes to `master` and `momentum`, never to `base`.

    The master keeps what the rounding of the base left over, so nothing is lost over the commits
    (rule 16). The base is the published value, bit for bit.
    """

    master: torch.Tensor  # f32[n]
    momentum: torch.Tensor  # f32[n]
    base: torch.Tensor  # bf16[n], or f32[n] on an f32 wire


def round_master(master: torch.Tensor, wire_down: Wire) -> torch.Tensor:
    """A base that is not the sum of differences: the master f32[n] in the base's type, a copy."""
    return torch.empty_like(master, dtype=tensors.base_dtype(wire_down)).copy_(master)
