"""The outer optimizer, in place: SGD with Nesterov momentum, f32 (2311.08105, algorithm 1).

With the merged difference d as gradient, learning rate eta and momentum mu:

    m := mu * m + d
    master := master - eta * (d + mu * m)

The differences are `base - theta`, what the learners moved away from, so subtracting them moves
the master towards the learners. With eta = 1 and mu = 0 the step is a plain average of models.

Each operation rounds by itself, so the bits do not depend on how a slice is cut into blocks, nor on
the machine. torch.optim.SGD(nesterov=True) fuses products with sums, and differs in the last bits.
"""

import numpy as np

from atoll_protos.transfer.arrays import Array


def nesterov_step(
    master: Array,
    buffer: Array,
    delta: Array,
    work: Array,
    *,
    learning_rate: float,
    momentum: float,
) -> None:
    """One step of `master` and its momentum `buffer` against `delta`, all f32[n], in place.

    A buffer of zeros is the first step. `delta` and `work`, f32[n] too, are used up. The buffer is
    kept with a momentum of 0 as well: the next momentum may be another.
    """
    np.multiply(buffer, momentum, out=buffer)
    np.add(buffer, delta, out=buffer)
    np.multiply(buffer, momentum, out=work)
    np.add(delta, work, out=delta)
    np.multiply(delta, learning_rate, out=delta)
    np.subtract(master, delta, out=master)
