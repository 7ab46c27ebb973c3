"""What learners of equality tests share: a small model, fixed data, one inner step, a meeting."""

import hashlib
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

LEARNERS = 2
PERIOD = 20
ROUNDS = 10
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
SYMBOLS, WIDTH, BATCH = 32, 16, 24
MEETINGS = (0, 10)  # steps: a joiner would enter at the others' tick; all before a hand-over
MEET_SECONDS_MAX = 600.0


class Model(nn.Module):
    """An embedding, a matrix, a bias, a norm and a tied head: one of each kind that travels."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(SYMBOLS, WIDTH)
            self.hidden = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)

    def forward(self, symbols: Tensor) -> Tensor:
        """Symbols int64 [batch] -> logits [batch, SYMBOLS]."""
        value = self.norm(functional.gelu(self.hidden(self.embedding(symbols))))
        return functional.linear(value, self.embedding.weight)


def batch(slot: str, cursor: int) -> tuple[Tensor, Tensor]:
    """Symbols and their successors, int64 [BATCH] each: a function of slot and cursor alone."""
    digest = hashlib.sha256(f"{slot}/{cursor}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4]))
    symbols = torch.randint(SYMBOLS, (BATCH,), generator=generator)
    noise = torch.randint(2, (BATCH,), generator=generator)
    return symbols, (5 * symbols + 3 + noise) % SYMBOLS


def inner_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As in DiLoCo; an epsilon that keeps rounding in a gradient near 0 from becoming a step."""
    return torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-3, weight_decay=0.1)


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, slot: str, cursor: int) -> float:
    """One step of the inner optimizer; returns the loss before it."""
    symbols, successors = batch(slot, cursor)
    loss = functional.cross_entropy(model(symbols), successors)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def meet(folder: Path, slot: str, learners: int) -> None:
    """Wait for the other learners, so that already the first round has all."""
    folder.mkdir(exist_ok=True)
    (folder / slot).touch()
    deadline = time.monotonic() + MEET_SECONDS_MAX
    while len(list(folder.iterdir())) < learners:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the other learners did not come to {folder}")
        time.sleep(0.01)
