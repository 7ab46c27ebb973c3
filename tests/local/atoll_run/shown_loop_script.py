"""Run the loop that a page shows, in a process of its own: `shown_loop_script.py PAGE FOLDER`.

The names that the block leaves open are here: a tiny model, and data that are a function of what
the block gives, as a user's would be. FOLDER/SLOT.jsonl gets the initial values and every batch.
"""

import json
import os
import sys
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD

import atoll
from local.atoll_run.shown_loops import block_of

PAGE, FOLDER = sys.argv[1], Path(sys.argv[2])
ROWS, WIDTH = 4, 8


def note(**values: object) -> None:
    with (FOLDER / f"{atoll.job().slot}.jsonl").open("a") as file:
        file.write(json.dumps(values) + "\n")


def name_of(*tensors: Tensor) -> str:
    return sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()


class Data:
    def batch(self, *place: int) -> Tensor:
        seed = int.from_bytes(sha256(repr(place).encode()).digest()[:6])
        found = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))
        note(batch=name_of(found))
        return found


def build_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    note(model=name_of(*model.parameters()))
    return model


def build() -> tuple[nn.Module, SGD]:
    model = build_model()
    return model, SGD(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).square().mean()
    return loss


torch.seed()  # what ran before has drawn numbers, other ones each time
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
known = {"build": build, "build_model": build_model, "loss_of": loss_of, "data": Data()}
tokens = dict.fromkeys(("batch_tokens", "tokens_of_all_ranks"), ROWS)
os.chdir(FOLDER)  # where a page saves its model
exec(compile(block_of(PAGE), PAGE, "exec"), {**known, **tokens})
