"""A user's script whose data is a stream that only its own state can continue."""

import json
import os
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from atoll import Learner

BATCH = 4
STEP_SECONDS = 0.1
GATE_TICKS = 30  # for each file gate-N: no learner is further than the test wants it to be


class Draws(IterableDataset[int]):
    """Random numbers without an end. No place in them can be found but from the place before."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.rng: random.Random | None = None

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        assert worker is not None
        if self.rng is None:
            self.rng = random.Random(f"{self.slot} {worker.id}")
        while True:
            yield self.rng.randrange(1 << 30)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": None if self.rng is None else self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["rng"] is not None:
            self.rng = random.Random()
            self.rng.setstate(state["rng"])


def loader_of(slot: str) -> Any:
    """Two worker processes, each with a stream of its own, which read ahead."""
    return StatefulDataLoader(Draws(slot), batch_size=BATCH, num_workers=2, prefetch_factor=3)


def main() -> None:
    """Train until the job is final, and write down which batch each step was made with."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gates = Path(os.environ["BATCHES"])
    with Learner(model) as learner:
        loader = loader_of(learner.slot)
        if learner.data_state is not None:
            loader.load_state_dict(pickle.loads(learner.data_state))
        first = {"pid": os.getpid(), "kept": learner.data_state is not None}
        with Path(os.environ["BATCHES"], f"{learner.slot}.jsonl").open("a") as lines:
            for batch in loader:
                line = {**first, "cursor": learner.cursor, "batch": batch.tolist()}
                lines.write(json.dumps(line) + "\n")
                lines.flush()
                time.sleep(STEP_SECONDS)
                while learner.tick >= GATE_TICKS * len([*gates.glob("gate-*")]):
                    time.sleep(STEP_SECONDS)
                model((batch.float()[:, None] / (1 << 30)).expand(-1, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                learner.step(tokens=BATCH, state=lambda: pickle.dumps(loader.state_dict()))
                if learner.finished:
                    break


if __name__ == "__main__":
    main()
