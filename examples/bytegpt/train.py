"""`atoll-worker bytegpt.train:main`: trains a byte-level GPT as one learner of a job.

What makes it a good learner, and what a training script of your own should do as well:

- The initial model is a function of the job's seed alone, so that all learners begin equal.
- A batch is a function of (seed, slot, cursor). A learner that is started again asks the job for
  its cursor and goes on with the first batch that it has not trained; nothing is stored here.
- Every slot has its own part of the text, so that no two learners train on the same windows.
- The learning rate follows the job's tick (`learner.schedule`), not this process's own steps.
- All micro-batches of one optimizer step are counted in one `learner.step`.
- Started several times by a launcher, the processes are one learner: each has its own part of every
  batch, and their gradients are averaged.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import LambdaLR

import atoll
from atoll import Job, Learner, SpecError
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
    """Train until the job is final. Raises SpecError for wrong `arguments`."""
    options = parse(TrainOptions, sys.argv[1:] if arguments is None else arguments, "train")
    torch.set_num_threads(options.threads)
    device = device_of()
    rank, ranks = group(device)
    job = atoll.job()
    model = ByteGPT(options, seed=job.seed).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    batches = data.Batches(
        text=shard_of(job, options.data),
        seed=job.seed,
        slot=job.slot,
        batch=options.batch * options.accumulate,
        context=options.context,
    )
    with Learner(model, optimizer) as learner:
        ticks = length(job, options.tokens * ranks)
        learner.schedule(LambdaLR(optimizer, warmup_then_cosine(ticks)))
        while not learner.finished:
            begun = time.monotonic()
            loss = torch.zeros((), device=device)
            batch = batches.at(learner.cursor * ranks + rank).to(device)
            for part in torch.split(batch, options.batch):
                with torch.autocast(device.type, torch.bfloat16, enabled=options.dtype == "bf16"):
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


def shard_of(job: Job, patterns: Sequence[str]) -> torch.Tensor:
    """The slot's own part of the training text, uint8 [n]; SpecError for a slot of another job."""
    return data.read(patterns).shard(job.index, len(job.slots))


def length(job: Job, tokens_per_step: int) -> int:
    """The job's length in ticks, if every slot trains `tokens_per_step` tokens in each tick."""
    if job.steps is not None:
        return job.steps
    assert job.tokens is not None
    return max(1, math.ceil(job.tokens / (tokens_per_step * len(job.slots))))


def warmup_then_cosine(ticks: int) -> Callable[[int], float]:
    """The share of the peak rate at a tick: linear warm-up, then half a cosine to RATE_FLOOR."""
    warmup = max(1, min(WARMUP_TICKS_MAX, int(WARMUP_SHARE * ticks)))

    def share(tick: int) -> float:
        way = min(1.0, tick / ticks)
        down = RATE_FLOOR + (1 - RATE_FLOOR) * (1 + math.cos(math.pi * way)) / 2
        return min(1.0, (tick + 1) / warmup) * down

    return share


def pace(begun: float, seconds_min: float) -> None:
    """Sleep until a step that began at `begun` (monotonic seconds) has taken `seconds_min`."""
    left = seconds_min - (time.monotonic() - begun)
    if left > 0:
        time.sleep(left)
