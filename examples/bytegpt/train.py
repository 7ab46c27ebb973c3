"""`atoll-worker bytegpt.train:main`: trains a byte-level GPT as one learner of a job.

What makes it a good learner, and what a training script of your own should do as well:

- The initial model is a function of the job's seed alone, so that all learners begin equal.
- A batch is a function of (seed, slot, cursor). A learner that is started again asks the job for
  its cursor and goes on with the first batch that it has not trained; nothing is stored here.
- Every slot has its own part of the text, so that no two learners train on the same windows.
- The learning rate follows the job's tick (`learner.schedule`), not this process's own steps: a
  learner that joins late uses the same rate as the others.
- All micro-batches of one optimizer step are counted in one `learner.step`.
- Started several times by a launcher, as `atoll-worker launch` does, the processes are one learner:
  each has its own part of every batch, and their gradients are averaged.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import LambdaLR

import atoll
from atoll import Learner, RunFile, SpecError
from bytegpt import data
from bytegpt.model import ByteGPT, Size
from bytegpt.options import option, parse

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
GRADIENT_NORM_MAX = 1.0
WARMUP_SHARE, WARMUP_TICKS_MAX = 0.1, 50
RATE_FLOOR = 0.1  # where the cosine ends, as a share of the peak


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(Size):
    """Train a byte-level GPT as one learner of a job."""

    batch: int = option(16, "windows in a micro-batch")
    accumulate: int = option(1, "micro-batches in a step")
    learning_rate: float = option(3e-3, "of AdamW, at its peak")
    data: tuple[str, ...] = option((), "files, folders or globs; Python's library without any")
    dtype: str = option("f32", "of the computation: f32 or bf16; parameters stay f32")
    threads: int = option(1, "CPU threads")
    step_milliseconds_min: float = option(0.0, "no step is faster: for showing mixed hardware")

    def __post_init__(self) -> None:
        Size.__post_init__(self)
        for field in ("batch", "accumulate", "threads"):
            if getattr(self, field) < 1:
                raise SpecError(field, f"is {getattr(self, field)}", "give 1 or more")
        if self.dtype not in ("f32", "bf16"):
            raise SpecError("dtype", f"{self.dtype!r} is unknown", "use f32 or bf16")

    @property
    def tokens(self) -> int:
        """The tokens of one optimizer step."""
        return self.batch * self.accumulate * self.context


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until the job is final.

    `arguments` are those of TrainOptions, by default the command line's. Raises SpecError for
    wrong ones, and what Learner raises.
    """
    options = parse(TrainOptions, sys.argv[1:] if arguments is None else arguments, "train")
    torch.set_num_threads(options.threads)
    device = device_of()
    rank, ranks = group(device)
    job = atoll.job()
    run_file = job.run_file
    model = ByteGPT(options, seed=job.seed).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    batches = data.Batches(
        text=shard_of(run_file, job.slot, options.data),
        seed=job.seed,
        slot=job.slot,
        batch=options.batch * options.accumulate,
        context=options.context,
    )
    with Learner(model, optimizer) as learner:
        ticks = length(run_file, options.tokens * ranks)
        learner.schedule(LambdaLR(optimizer, warmup_then_cosine(ticks)))
        while not learner.finished:
            begun = time.monotonic()
            loss = torch.zeros((), device=device)
            batch = batches.at(learner.cursor * ranks + rank).to(device)
            for part in torch.split(batch, options.batch):
                with precision(options.dtype, device):
                    part_loss = model.loss(part) / options.accumulate
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += part_loss.detach()
            if ranks > 1:
                average_gradients(model, ranks)
            torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
            optimizer.step()
            optimizer.zero_grad()
            pace(begun, options.step_milliseconds_min / 1000)
            learner.step(tokens=options.tokens * ranks, loss=loss)
    if ranks > 1:
        distributed.destroy_process_group()


def device_of() -> torch.device:
    """The GPU of this process on its host, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def group(device: torch.device) -> tuple[int, int]:
    """This process's rank, and how many processes are one learner; waits for the others."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return 0, 1
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return distributed.get_rank(), distributed.get_world_size()


def average_gradients(model: nn.Module, ranks: int) -> None:
    """Give every process the mean of all processes' gradients, in one exchange."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    distributed.all_reduce(flat)
    sizes = [each.numel() for each in gradients]
    for each, total in zip(gradients, torch.split(flat, sizes), strict=True):
        each.copy_(total.view_as(each) / ranks)


def shard_of(run_file: RunFile, slot: str, patterns: Sequence[str]) -> torch.Tensor:
    """The slot's own part of the training text, uint8 [n]; SpecError for a slot of another job."""
    if slot not in run_file.slots:
        raise SpecError(
            "ATOLL_SLOT",
            f"{slot} is not a slot of the job",
            f"use one of {', '.join(run_file.slots)}",
        )
    return data.read(patterns).shard(run_file.slots.index(slot), len(run_file.slots))


def length(run_file: RunFile, tokens_per_step: int) -> int:
    """The job's length in ticks, if every slot trains `tokens_per_step` tokens in each tick."""
    if run_file.steps is not None:
        return run_file.steps
    assert run_file.tokens is not None
    return max(1, math.ceil(run_file.tokens / (tokens_per_step * len(run_file.slots))))


def warmup_then_cosine(ticks: int) -> Callable[[int], float]:
    """The share of the peak learning rate at a tick: linear warm-up, then half a cosine down.

    It ends at RATE_FLOOR and stays there: a job may pass its length by a few ticks.
    """
    warmup = max(1, min(WARMUP_TICKS_MAX, int(WARMUP_SHARE * ticks)))

    def share(tick: int) -> float:
        way = min(1.0, tick / ticks)
        down = RATE_FLOOR + (1 - RATE_FLOOR) * (1 + math.cos(math.pi * way)) / 2
        return min(1.0, (tick + 1) / warmup) * down

    return share


def precision(dtype: str, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision for dtype bf16, nothing for f32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bf16")


def pace(begun: float, seconds_min: float) -> None:
    """Sleep until a step that began at `begun` (monotonic seconds) has taken `seconds_min`."""
    left = seconds_min - (time.monotonic() - begun)
    if left > 0:
        time.sleep(left)
