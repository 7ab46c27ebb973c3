"""A PyTorch loop of one's own as a learner of a job; the lines with `learner` are Atoll's."""

import os
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from atoll import Learner

WIDTH, BATCH = int(os.environ.get("WIDTH", "64")), int(os.environ.get("BATCH", "16"))
CONTEXT = 48


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
    torch.manual_seed(0)  # every learner begins with the same values
    model = NextByte()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Learner(model, optimizer) as learner:
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        mine = files[learner.run_file.slots.index(learner.slot) :: len(learner.run_file.slots)]
        content = bytearray().join(file.read_bytes() for file in mine)
        text = torch.frombuffer(content, dtype=torch.uint8)
        while not learner.finished:
            batch = windows(text, f"{learner.seed}/{learner.slot}/{learner.cursor}")
            loss = functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            learner.step(tokens=BATCH * CONTEXT, loss=loss)


if __name__ == "__main__":
    main()
