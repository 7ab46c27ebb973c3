"""The outer optimizer, in place: SGD with Nesterov momentum, f32 (2311.08105, algorithm 1).

With the merged difference d as gradient, learning rate eta and momentum mu:

    m := mu * m + d
    master := master - eta * (d + mu * m)

The differences are `base - theta`, what the learners moved away from, so subtracting them moves
the master towards the learners. With eta = 1 and mu = 0 the step is a plain average of models.

The bits must not depend on how a slice is cut into blocks: a replay or another machine may cut
differently. torch's fused kernel computes whole vectors with fused multiply-add and the rest
element by element, with other roundings. So the fused kernel gets a multiple of VECTOR_ELEMENTS,
and the rest takes the plain operations, which round as torch.optim.SGD does.
"""

from dataclasses import dataclass

import torch

VECTOR_ELEMENTS = 64  # a multiple of every CPU's vector; shorter tails round differently when fused


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Settings of one outer step; the published systems use 0.7/0.9 and 0.4/0.9."""

    learning_rate: float
    momentum: float

    def __post_init__(self) -> None:
        assert self.learning_rate > 0, self
        assert 0 <= self.momentum < 1, self


def nesterov_step(
    master: torch.Tensor, momentum_buffer: torch.Tensor, delta: torch.Tensor, outer: Outer
) -> None:
    """One step of `master` f32[n] and `momentum_buffer` f32[n] against `delta` f32[n], in place.

    Bit for bit torch.optim.SGD(nesterov=True) with `delta` as the gradient, wherever the vectors
    are cut into blocks; a buffer of zeros is that optimizer's first step. `delta` is used up.
    """
    if outer.momentum == 0:  # the buffer is kept all the same: the next momentum may be another
        momentum_buffer.copy_(delta)
        master.add_(delta, alpha=-outer.learning_rate)
        return
    cut = delta.numel() // VECTOR_ELEMENTS * VECTOR_ELEMENTS
    if cut:
        _fused(master[:cut], momentum_buffer[:cut], delta[:cut], outer)
    if cut < delta.numel():
        _plain(master[cut:], momentum_buffer[cut:], delta[cut:], outer)


def _fused(master: torch.Tensor, buffer: torch.Tensor, delta: torch.Tensor, outer: Outer) -> None:
    """One pass over memory: the kernel behind torch.optim.SGD(fused=True)."""
    torch._fused_sgd_(
        [master],
        [delta],
        [buffer],
        weight_decay=0.0,
        momentum=outer.momentum,
        lr=outer.learning_rate,
        dampening=0.0,
        nesterov=True,
        maximize=False,
        is_first_step=False,
    )


def _plain(master: torch.Tensor, buffer: torch.Tensor, delta: torch.Tensor, outer: Outer) -> None:
    buffer.mul_(outer.momentum).add_(delta)
    delta.add_(buffer, alpha=outer.momentum)
    master.add_(delta, alpha=-outer.learning_rate)
