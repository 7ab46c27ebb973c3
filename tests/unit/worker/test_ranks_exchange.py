"""What a rank of a learner is that holds nothing that travels."""

import torch
from torch import nn

from atoll_worker.ranks.exchange import _device_among


def test_a_rank_with_nothing_that_travels_has_values_where_its_model_is() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).to("meta"))
    assert _device_among([mixed], "cpu") == torch.device("cpu")
    assert _device_among([mixed], "meta") == torch.device("meta")


def test_a_rank_without_a_tensor_on_the_device_of_the_others_takes_the_current_one() -> None:
    assert _device_among([nn.Identity()], "cpu") == torch.device("cpu")
    assert _device_among([nn.Linear(2, 2)], "meta") == torch.device("meta")
