"""A user's own script: two ranks train one model by FSDP2, of which not all travels.

    python export_script.py FOLDER

The ranks are forks of this process. Rank 0 leaves in FOLDER/whole.pt the state that all of them
hold together at the end.
"""

import time
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from atoll import Learner
from local.forked import script_of

RANKS = 2
WORDS, WIDTH, BATCH = 11, 6, 8


class Fused(nn.Module):
    """Two projections in one matrix, which are saved apart: all ranks must be there for that."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.register_state_dict_post_hook(self.split)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(self.join)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.both(x).chunk(2, -1)
        return cast(Tensor, x + one * two.sigmoid())

    @staticmethod
    def split(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        """As torchtitan's attention does."""
        both = state.pop(f"{prefix}both.weight")
        both = both.full_tensor() if isinstance(both, DTensor) else both
        state[f"{prefix}one.weight"], state[f"{prefix}two.weight"] = both.chunk(2)

    @staticmethod
    def join(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        """The reverse, of a state that was split."""
        names = [f"{prefix}one.weight", f"{prefix}two.weight"]
        if names[0] in state:
            state[f"{prefix}both.weight"] = torch.cat([state.pop(name) for name in names])


class Model(nn.Module):
    """A fused layer, a head tied to the embedding, a frozen layer, a norm that counts batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.fused = Fused()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Ids [batch] to logits [batch, WORDS]."""
        return cast(Tensor, self.head(self.norm(self.base(self.fused(self.words(words))))))


def be(rank: int, folder: Path) -> None:
    """One rank, until the job is final."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    model = Model()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Learner(model, optimizer) as learner:
        while not learner.finished:
            words = torch.randint(
                WORDS, (BATCH,), generator=torch.Generator().manual_seed(2 * learner.cursor + rank)
            )
            loss = nn.functional.cross_entropy(model(words), (words + 1) % WORDS)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
            learner.step(tokens=BATCH * RANKS, loss=loss)
    whole = {
        key: cast(Tensor, getattr(value, "full_tensor", lambda value=value: value)())
        for key, value in model.state_dict().items()
    }
    if rank == 0:
        torch.save(whole, folder / "whole.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    script_of(RANKS, be)
