"""Held-out loss of torch DistributedDataParallel over gloo: model, data, tokens of bench.quality.

In tests/: python -m bench.ddp [--json]
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from bench.quality import (
    BATCH,
    HELDOUT_BYTES,
    LEARNERS,
    SIZE,
    Found,
    parser,
    report,
    size_arguments,
)
from bytegpt import data
from bytegpt.evaluate import heldout_loss
from bytegpt.model import ByteGPT
from bytegpt.options import parse
from bytegpt.train import (
    BETAS,
    GRADIENT_NORM_MAX,
    WEIGHT_DECAY,
    TrainOptions,
    warmup_then_cosine,
)


class Loss(nn.Module):
    """DistributedDataParallel follows forward(): the loss is it."""

    def __init__(self, model: ByteGPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Windows int64 [batch, context + 1] -> the mean loss."""
        return self.model.loss(windows)


def train(rank: int, folder: str, seed: int, steps: int) -> None:
    """One rank: the data of one of bench.quality's learners; rank 0 leaves the loss."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-{seed}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=LEARNERS)
    options = parse(TrainOptions, [*size_arguments(), "--batch", str(BATCH)], "ddp")
    model = ByteGPT(options, seed=seed)
    loss = DistributedDataParallel(Loss(model))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    schedule = LambdaLR(optimizer, warmup_then_cosine(steps))
    text = data.read()
    batches = data.Batches(
        text=text.shard(rank, LEARNERS),
        seed=seed,
        slot=f"region-{rank}-0",
        batch=BATCH,
        context=options.context,
    )
    for step in range(steps):
        loss(batches.at(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    if rank == 0:
        windows = data.windows(
            text.heldout(), context=options.context, byte_count_max=HELDOUT_BYTES
        )
        Path(folder, f"loss-{seed}").write_text(str(heldout_loss(model, windows).loss))
    dist.destroy_process_group()


def measure(folder: str, seed: int, arguments: argparse.Namespace) -> Found:
    """All ranks of one run."""
    begun = time.monotonic()
    calls = [(rank, folder, seed, arguments.steps) for rank in range(LEARNERS)]
    with multiprocessing.get_context("spawn").Pool(LEARNERS) as ranks:
        ranks.starmap(train, calls, chunksize=1)
    return Found(
        system="data-parallel",
        seed=seed,
        loss=float(Path(folder, f"loss-{seed}").read_text()),
        tokens=arguments.steps * LEARNERS * BATCH * SIZE["context"],
        participation=1.0,
        seconds=time.monotonic() - begun,
    )


def main() -> None:
    """Run and print."""
    arguments = parser(__doc__).parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            found.append(measure(folder, seed, arguments))
            sys.stderr.write(f"{found[-1]}\n")
    report(found, arguments)


if __name__ == "__main__":
    main()
