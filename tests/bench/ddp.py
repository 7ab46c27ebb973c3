"""torch DistributedDataParallel over gloo: model, data and tokens of bench.quality's learners."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

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


def train(
    rank: int,
    slots: Sequence[str],
    words: Sequence[str],
    seed: int,
    steps: int,
    heldout_bytes: int,
    out: Path,
) -> None:
    """One rank, with the data of the learner in its slot; rank 0 leaves the loss in `out`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}.meeting", rank=rank, world_size=len(slots)
    )
    options = parse(TrainOptions, words, "ddp")
    model = ByteGPT(options, seed=seed)
    loss = DistributedDataParallel(Loss(model))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    schedule = LambdaLR(optimizer, warmup_then_cosine(steps))
    text = data.read()
    batches = data.Batches(
        text=text.shard(rank, len(slots)),
        seed=seed,
        slot=slots[rank],
        batch=options.batch,
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
            text.heldout(), context=options.context, byte_count_max=heldout_bytes
        )
        out.write_text(str(heldout_loss(model, windows)))
    dist.destroy_process_group()


def heldout(
    slots: Sequence[str],
    words: Sequence[str],
    *,
    seed: int,
    steps: int,
    heldout_bytes: int,
    out: Path,
) -> float:
    """Train with all ranks; the held-out loss in nats per byte."""
    calls = [(rank, slots, words, seed, steps, heldout_bytes, out) for rank in range(len(slots))]
    with multiprocessing.get_context("spawn").Pool(len(slots)) as ranks:
        ranks.starmap(train, calls, chunksize=1)
    return float(out.read_text())
