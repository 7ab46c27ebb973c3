"""The momentum of an outer step: as the manifest says, or by the rule `auto`.

The first merged differences of a job are long and all point one way, and a momentum of 0.9
multiplies them by up to 7. What that does to the weights stays. So `auto` begins without momentum
and follows Nesterov's sequence k / (k + c) up to 0.9, where k counts the merges that the slice's
momentum has taken in, and c is the root of how many merges a slice has in the whole job:

    R  = max(1, T / H)
    mu = min(0.9, k / (k + max(sqrt(R), 64 / H)))

Where periods are very short, `64 / H` makes the beginning last some 64 ticks all the same. A job
whose length is not known in ticks has R = 400. docs/algorithm.md has the measurements.
"""

import math
import struct
from typing import Final

from atoll_protos.run import Momentum, Sync

MOMENTUM_MAX: Final = 0.9  # the published value (2311.08105)
ROUNDS_UNKNOWN: Final = 400  # R, where the job's length is given in tokens
WARM_TICKS_MIN: Final = 64


def momentum(sync: Sync, merges: int, steps: int | None) -> float:
    """mu of a slice's next merge, after `merges` others; `steps` is T, None: not known in ticks.

    By the rule it is a value of f32, so that every reader of a tape has all of its bits.
    """
    if not isinstance(sync.outer_momentum, Momentum):
        return sync.outer_momentum
    rounds = ROUNDS_UNKNOWN if steps is None else max(1.0, steps / sync.period)
    slowness = max(math.sqrt(rounds), WARM_TICKS_MIN / sync.period)
    (rounded,) = struct.unpack(
        "f", struct.pack("f", min(MOMENTUM_MAX, merges / (merges + slowness)))
    )
    return float(rounded)
