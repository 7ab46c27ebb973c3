"""Equal digests of first losses prove equal data; where losses depend on no data there is none."""

import math

import numpy as np
import pytest
import torch

from atoll_worker.model.staging import Scalar
from atoll_worker.training.logged_values import FIRST_STEPS, Losses, digest_of

LOSSES = [11.0 + 0.3 * math.sin(n) for n in range(FIRST_STEPS)]


def never(tensor: torch.Tensor) -> Scalar:
    raise AssertionError(tensor)


def noted(values: list[float]) -> Losses:
    losses = Losses()
    for value in values:
        losses.note(value, never)
    return losses


def test_the_digest_is_of_the_first_steps_and_differs_with_the_last_bit_of_one() -> None:
    assert noted(LOSSES[:-1]).first_digest == 0
    found = noted(LOSSES).first_digest
    assert 0 < found < 1 << 64
    assert noted([*LOSSES, 3.0, 2.0]).first_digest == found
    for place in range(FIRST_STEPS):
        other = [*LOSSES]
        other[place] = math.nextafter(other[place], 0.0)
        assert noted(other).first_digest not in (0, found)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * FIRST_STEPS,
        [math.nan] * FIRST_STEPS,
        [*LOSSES[:-1], math.inf],
        [math.log(50257.0) - 1e-6 * n for n in range(FIRST_STEPS)],  # a head of zeros, warm-up
        [float(np.float16(each)) for each in LOSSES],
        [torch.tensor(each, dtype=torch.bfloat16).item() for each in LOSSES],
        [1.0 / (1 + (n > 1)) for n in range(FIRST_STEPS)],
    ],
    ids=["zero", "nan", "infinite", "log of the vocabulary", "f16", "bf16", "of few digits"],
)
def test_losses_that_may_be_equal_on_other_data_have_no_digest(values: list[float]) -> None:
    assert digest_of(values) == 0


def test_losses_in_f32_have_one() -> None:
    assert digest_of([float(np.float32(each)) for each in LOSSES])
