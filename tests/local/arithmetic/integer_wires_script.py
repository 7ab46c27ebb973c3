"""A user's own script: one learner of the test of integer wires. At the end it saves its model."""

import os
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from atoll import Learner

SYMBOLS, WIDTH, BATCH = 64, 192, 16
FRAGMENTS, PERIOD = 2, 8
STEP_SECONDS = 0.02
BEHIND_SECONDS = 0.25  # of a step while the shards have not kept pace, on a slow machine


class Model(nn.Module):
    """Parameters, a constant that travels, statistics that change, and a bf16 part."""

    frequencies: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(SYMBOLS, WIDTH)
            self.hidden = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.BatchNorm1d(WIDTH)
            self.narrow = nn.Linear(WIDTH, WIDTH, bias=False).bfloat16()
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(WIDTH) / WIDTH))

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols int64 [batch] -> logits [batch, SYMBOLS]."""
        value = self.norm(self.hidden(self.embedding(symbols) + self.frequencies))
        value = functional.gelu(value)
        value = self.narrow(value.bfloat16()).float()
        return functional.linear(value, self.embedding.weight)


def is_behind(folder: Path, tick: int) -> bool:
    """Whether a shard has merged less than it could have by this tick."""
    texts = [path.read_text() for path in folder.glob("syncer/*.jsonl")]
    return any(text.count('"event": "commit"') < FRAGMENTS * (tick // PERIOD - 1) for text in texts)


def main() -> None:
    """Train until the job is final."""
    torch.set_num_threads(1)
    model = Model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    folder = Path(os.environ["ATOLL_TELEMETRY_DIR"])
    with Learner(model, optimizer) as learner:
        while not learner.finished:
            generator = torch.Generator().manual_seed(learner.cursor)
            symbols = torch.randint(SYMBOLS, (BATCH,), generator=generator)
            loss = functional.cross_entropy(model(symbols), (symbols * 5 + 1) % SYMBOLS)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH, loss=loss)
            # Steps of real models are longer than a round trip.
            time.sleep(BEHIND_SECONDS if is_behind(folder, learner.tick) else STEP_SECONDS)
        save_file(model.state_dict(), folder / f"{learner.slot}.safetensors")


if __name__ == "__main__":
    main()
