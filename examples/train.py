"""Your own PyTorch loop as a learner of a job: only lines with `atoll` or `learner` are Atoll's.

    python examples/train.py                                 alone, for 100 steps
    atoll run examples/train.py --learners 2 --steps 400     as two learners
    atoll run examples/script.yaml                           the same with a manifest that says more

The environment tells each process which slot of which job it is. A script must do four things:

1. Every learner begins with the same values (the job's seed). On entering the `with`, the model
   takes the job's values, so a learner that joins late begins where the others are.
2. A batch is a function of (seed, slot, cursor), and the job keeps the cursor. A learner that is
   started again goes on with its next batch.
3. `learner.step` comes after every optimizer step, with the tokens trained in it. Between two of
   these calls nothing but this loop changes the model.
4. The loop ends when `learner.finished` is true. The model then has the job's final values.
"""

import os
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import atoll

WIDTH, BATCH = int(os.environ.get("WIDTH", "64")), int(os.environ.get("BATCH", "16"))
CONTEXT = 48  # bytes that a prediction may look back on


class NextByte(nn.Module):
    """Bytes int64 [batch, length] -> logits [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Every position predicts the byte after it."""
        return self.head(self.recurrent(self.embedding(values))[0])  # type: ignore[no-any-return]


def windows(text: torch.Tensor, name: str) -> torch.Tensor:
    """A batch that is a function of its name alone, so that a restarted learner goes on."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)].long()


def main() -> None:
    """Train on Python's own sources until the job is final."""
    job = atoll.job()
    torch.manual_seed(job.seed)  # every learner begins with the same values
    model = NextByte()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Every slot reads its own files, so that no two learners train on the same text.
    files = sorted(Path(os.__file__).parent.glob("*.py"))[job.index :: len(job.slots)]
    content = bytearray().join(file.read_bytes() for file in files)
    text = torch.frombuffer(content, dtype=torch.uint8)
    with atoll.Learner(model, optimizer) as learner:
        learner.schedule(lambda progress: 1 - 0.9 * progress)
        while not learner.finished:
            batch = windows(text, f"{job.seed}/{job.slot}/{learner.cursor}")
            loss = functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH * CONTEXT, loss=loss)


if __name__ == "__main__":
    main()
