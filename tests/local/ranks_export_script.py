"""A user's own script: two ranks train one model by FSDP2, of which not all travels.

    python ranks_export_script.py FOLDER

The ranks are forks of this process. Rank 0 leaves in FOLDER/whole.pt the state that all of them
hold together at the end.
"""

import sys
import time
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from atoll import Learner
from local.forked import to_their_end

RANKS = 2
WORDS, WIDTH, BATCH = 11, 6, 8


class Model(nn.Module):
    """A head tied to the embedding, a frozen layer, and a norm that counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Ids [batch] to logits [batch, WORDS]."""
        return cast(Tensor, self.head(self.norm(self.base(self.words(words)))))


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


def main(folder: Path) -> int:
    """All ranks, to their end."""
    torch.set_num_threads(1)
    return to_their_end(RANKS, be, folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
