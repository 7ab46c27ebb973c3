"""The tensors of one slice between two commits; the only values of a shard that need torch."""

from dataclasses import dataclass

import torch

from atoll_protos.codecs import Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTensors:
    """A slice between two commits. A commit writes to `master` and `momentum`, never to `base`.

    The master keeps what the rounding of the base left over, so nothing is lost over the commits
    (rule 16). The base is the published value, bit for bit.
    """

    master: torch.Tensor  # f32[n]
    momentum: torch.Tensor  # f32[n]
    base: Packed[torch.Tensor]


def round_master(master: torch.Tensor, base: Packed[torch.Tensor]) -> None:
    """Fill a base that is not the sum of differences: the master f32[n] in the base's types."""
    base.exact.copy_(master[: base.form.exact])
    base.coded.copy_(master[base.form.exact :])
