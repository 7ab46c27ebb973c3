"""`atoll-worker bytegpt.observe:main`: measures the held-out loss of a job while it trains.

It is the job's evaluator (`spec.evaluator`), which only receives parameters.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atoll import Observer
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT, Size
from bytegpt.options import option, parse

NICE = 10  # an evaluation on a shared machine gives way to the learners
EVERY_TICKS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions(Size):
    """Measure the held-out loss of the shared parameters of a byte-level GPT while it trains."""

    every: int = option(0, "ticks between two measurements; 0: as in the job, else 100")
    data: tuple[str, ...] = option((), "as the learners'")
    heldout_bytes: int = option(1 << 17, "at most so many bytes, evenly spread")


def main(arguments: Sequence[str] | None = None) -> None:
    """Report the loss of a snapshot every so many ticks; return after the final one."""
    options = parse(ObserveOptions, sys.argv[1:] if arguments is None else arguments, "observe")
    os.nice(NICE)
    torch.set_num_threads(1)
    windows = data.windows(
        data.read(options.data).heldout(),
        context=options.context,
        byte_count_max=options.heldout_bytes,
    )
    with Observer(ByteGPT(options, seed=0)) as observer:
        every = options.every or observer.every or EVERY_TICKS
        for snapshot in observer.snapshots(every=every):
            assert isinstance(snapshot.model, ByteGPT)
            loss = heldout_loss(snapshot.model, windows)
            observer.report(loss=loss, tokens=windows[:, 1:].numel())
