"""A trainer with a loop of its own: it steps on past the end, and saves its model then."""

import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import atoll

STEP_SECONDS = 0.02
STEPS_PAST_THE_END = 5


class Model(nn.Module):
    """A constant, statistics that change, and weights so large that every step shows in bf16."""

    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 4)
        self.register_buffer("scales", 1 + torch.arange(8) / 7)

    def forward(self, values: Tensor) -> Tensor:
        """Values [batch, 8] -> [batch, 4]."""
        return self.last(self.norm(self.first(values * self.scales)).relu())  # type: ignore[no-any-return]


def main(dtype: torch.dtype) -> None:
    """Train as a trainer does that knows nothing of Atoll but its hook."""
    torch.set_num_threads(1)
    job = atoll.job()
    torch.manual_seed(job.seed)
    model = Model().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    learner = atoll.Learner(model, optimizer).open()
    learner.schedule(lambda progress: 1 - progress / 2)
    learner.follow(optimizer, tokens=16)
    torch.manual_seed(job.index)
    past = 0
    while past < STEPS_PAST_THE_END:
        values = torch.randn(16, 8, dtype=dtype)
        (model(values) - values[:, :4]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        past += learner.finished
        time.sleep(STEP_SECONDS)
    save_file(
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        Path(os.environ["ATOLL_TELEMETRY_DIR"]) / f"{job.slot}.safetensors",
    )
    learner.close()


if __name__ == "__main__":
    main(getattr(torch, sys.argv[1]))
