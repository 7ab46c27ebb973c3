"""Ranks of torch DistributedDataParallel over gloo: model, data and tokens of Atoll's learners."""

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
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
    pace,
    warmup_then_cosine,
)

FORWARD = 1 / 3  # of a step that only waits: gradients travel in the rest (2501.18512, 3.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks do. `words` are options of the example; `slots` give each rank its data."""

    slots: Sequence[str]
    words: Sequence[str]
    seed: int
    steps: int  # of the schedule
    stop: int  # after so many of them
    measured: Sequence[int]  # steps after which the held-out loss is taken
    heldout_bytes: int
    out: str  # a file
    bf16: bool = False  # gradients travel so, else in f32


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the first rank writes."""

    began: list[float]  # each step, in Unix seconds
    ended: list[float]
    losses: list[float]  # in nats per byte, after the steps of `measured`


class Loss(nn.Module):
    """DistributedDataParallel follows forward(): the loss is it."""

    def __init__(self, model: ByteGPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Windows int64 [batch, context + 1] -> the mean loss."""
        return self.model.loss(windows)


def train(rank: int, task: Task) -> None:
    """One rank, with the data of the learner in its slot; rank 0 writes `Trained` to `out`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{task.out}.meeting", rank=rank, world_size=len(task.slots)
    )
    options = parse(TrainOptions, task.words, "ddp")
    text = data.read(options.data)
    batches = data.Batches(
        text=text.shard(rank, len(task.slots)),
        seed=task.seed,
        slot=task.slots[rank],
        batch=options.batch,
        context=options.context,
    )
    windows = data.windows(
        text.heldout(), context=options.context, byte_count_max=task.heldout_bytes
    )
    trained = steps(task, options, batches, windows if rank == 0 else None)
    if rank == 0:
        Path(task.out).write_text(json.dumps(dataclasses.asdict(trained)))
    dist.destroy_process_group()


def steps(
    task: Task, options: TrainOptions, batches: data.Batches, windows: torch.Tensor | None
) -> Trained:
    """All steps of a rank; the loss is taken on `windows`, int64 [k, context + 1], if any."""
    model = ByteGPT(options, seed=task.seed)
    loss = DistributedDataParallel(Loss(model))
    if task.bf16:
        loss.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    schedule = LambdaLR(optimizer, warmup_then_cosine(task.steps))
    seconds_min = options.step_milliseconds_min / 1e3
    trained = Trained(began=[], ended=[], losses=[])
    for step in range(task.stop):
        trained.began.append(time.time())
        begun = time.monotonic()
        found = loss(batches.at(step))
        pace(begun, FORWARD * seconds_min)
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        pace(begun, seconds_min)
        trained.ended.append(time.time())
        if windows is not None and step + 1 in task.measured:
            trained.losses.append(heldout_loss(model, windows))
    return trained


def read(out: str) -> Trained:
    """What the first rank has written."""
    return Trained(**json.loads(Path(out).read_text()))
