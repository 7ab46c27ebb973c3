"""A user's own script: FSDP2 on two ranks with all that people put around a training step.

    python ways_script.py FOLDER

A block that is compiled, one with activation checkpointing, a policy of bf16, accumulated
gradients, a GradScaler that skips steps, and an evaluation before each step of the Learner, which
leaves parameters whole. The ranks are forks of this process. FOLDER/RANK.pt has the logits of the
model when the job is over, and how many steps were made and skipped.
"""

import os
import time
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from atoll import Learner
from local.forked import script_of

RANKS = 2
WIDTH, BATCH, CLASSES = 8, 8, 5
MICRO_BATCHES = 2
SKIPPED_EVERY = 5  # a step whose gradients are not finite


class Model(nn.Module):
    """Three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(3)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        """[batch, WIDTH] to logits [batch, CLASSES]."""
        for block in self.blocks:
            values = values + block(values).relu()
        return cast(Tensor, self.head(self.norm(values)))


def questions() -> Tensor:
    """What the model is asked at the end."""
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))


def wrapped() -> Model:
    """As the wrappers' users do it: first these, then FSDP2."""
    model = Model()
    model.blocks[0] = cast(nn.Module, torch.compile(model.blocks[0], backend="eager"))
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def be(rank: int, folder: Path) -> None:
    """One rank, until the job is final."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    made = skipped = 0
    with Learner(model, optimizer) as learner:
        while not learner.finished:
            draws = torch.Generator().manual_seed(100 * learner.cursor + rank)
            spoilt = (made + skipped) % SKIPPED_EVERY == SKIPPED_EVERY - 1
            for micro in range(MICRO_BATCHES):
                cast(FSDPModule, model).set_requires_gradient_sync(micro == MICRO_BATCHES - 1)
                values = torch.randn(BATCH, WIDTH, generator=draws)
                answers = (values.sum(1) > 0).long()
                loss = nn.functional.cross_entropy(model(values), answers) / MICRO_BATCHES
                if spoilt and rank == 1:
                    loss = loss * torch.inf
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            before, scale = learner.own_steps, scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < scale:
                skipped += 1
                assert spoilt
                continue
            made += 1
            with torch.no_grad():
                model(questions())
            time.sleep(0.02)
            learner.step(tokens=BATCH * MICRO_BATCHES * RANKS, loss=loss)
            assert learner.own_steps == before + 1 or learner.finished
        with torch.no_grad():
            logits = model(questions())
    torch.save({"logits": logits, "made": made, "skipped": skipped}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["TORCHDYNAMO_SUPPRESS_ERRORS"] = "1"
    script_of(RANKS, be)
