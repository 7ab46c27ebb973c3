"""What a batch counts for, and seeds of slots."""

from typing import Any

import pytest
import torch

from atoll_integrations.batches import slot_seed, tokens_in

TEXT = torch.zeros(4, 32, dtype=torch.int64)
IMAGES = torch.zeros(6, 3, 8, 8)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"labels": torch.zeros(4, dtype=torch.int64), "input_ids": TEXT}, 4 * 32),
        ({"pixel_values": IMAGES, "labels": torch.zeros(6, dtype=torch.int64)}, 6),
        ([IMAGES, torch.zeros(6, dtype=torch.int64)], 6),
        ((TEXT, TEXT), 4 * 32),
        ({"one": [{"x": IMAGES}]}, 6),
        (torch.zeros(5, 7), 5),
        (torch.tensor(1.0), 1),
        (torch.zeros(0, 4), 1),
        (None, 1),
        ("no tensor at all", 1),
    ],
)
def test_integers_of_two_dimensions_are_tokens_and_all_else_samples(batch: Any, count: int) -> None:
    assert tokens_in(batch) == count


def test_the_main_input_of_a_model_counts_if_it_is_there() -> None:
    batch = {"labels": torch.zeros(4, 2, dtype=torch.int64), "frames": TEXT}
    assert tokens_in(batch, "frames") == 4 * 32
    assert tokens_in(batch, "absent") == 4 * 2


def test_no_epoch_of_a_slot_has_the_seed_of_another_slots_epoch() -> None:
    slots = [f"{region}-{number}" for region in ("us-east", "eu-west") for number in range(50)]
    seeds = [slot_seed(42, slot, epoch) for slot in slots for epoch in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
