"""Data whose order can be read from the batches, for trainers of several libraries."""

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

SAMPLES, BATCH = 40, 4
EPOCH_BATCHES, EPOCH_STEPS = 10, 3  # of two times four batches and two
RATE = 0.01


class Numbers(Dataset[dict[str, Tensor]]):
    """Sample n is the number n; `read` are those that were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        value = torch.tensor([index / SAMPLES])
        return {"x": value, "labels": 2 * value}


class Stream(IterableDataset[dict[str, Tensor]]):
    """The same without a length, in order."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (Numbers()[index] for index in range(SAMPLES))


class Line(nn.Module):
    """One weight and one bias; `seen` are the numbers of every batch that it was trained on.

    `losses` are those of the batches.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(1, 1)
        self.seen: list[tuple[int, ...]] = []
        self.losses: list[float] = []

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = functional.mse_loss(self.layer(x), labels)
        if self.training:
            self.seen.append(tuple((x[:, 0] * SAMPLES).round().int().tolist()))
            self.losses.append(loss.item())
        return {"loss": loss}

    def losses_of_steps(self, *counts: int) -> list[float]:
        """The mean losses of the first steps, which took so many batches each."""
        batches = iter(self.losses)
        return [sum(islice(batches, count)) / count for count in counts]


Seen = list[tuple[int, ...]]


def steps_beyond(*batches: int) -> int:
    """Steps that take more batches than each of these.

    How far a learner has gone when its job is over depends on how fast the machine is.
    """
    return EPOCH_STEPS * (1 + max(batches) // EPOCH_BATCHES)


def check_two_starts(
    whole: Seen, first: Seen, second: Seen, cursor: int, rates: list[tuple[int, float]], steps: int
) -> None:
    """A learner that was started again at `cursor` has gone on with its next batch.

    Its order is the data's own in no epoch, and another one in each; its learning rate, by tick,
    falls to 0 in the steps of the job.
    """
    assert len(set(first[:10])) == 10
    assert first[:10] != sorted(first[:10])
    assert first[10:20] != first[:10]
    assert 0 < cursor <= len(first)
    assert continues(first, 0, whole)
    assert continues(second, cursor, whole)
    border = -cursor % 10
    epoch = second[border : border + 10]
    assert len({number for batch in epoch for number in batch}) == SAMPLES
    for tick, rate in rates:
        assert rate == pytest.approx(RATE * max(0, 1 - tick / steps))
    assert rates[-1][0] >= steps - 2


def continues(seen: list[tuple[int, ...]], at: int, whole: list[tuple[int, ...]]) -> bool:
    """Whether batches are those of `whole` from `at` on, which has all of them."""
    return bool(seen) and seen == whole[at : at + len(seen)]
