"""Ranks of a learner step the same tensor with the same settings."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from atoll_protos.errors import SpecError
from atoll_worker.model.parameters import travelling
from atoll_worker.script.optimizers import Settings, check_alike, settings


def of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Settings:
    return settings([optimizer], travelling(model))


def test_equal_settings_pass_also_where_a_rate_is_a_tensor_and_stages_differ() -> None:
    model = nn.Linear(2, 2)
    one = of(AdamW(model.parameters(), lr=0.5), model)
    rate = torch.tensor(0.5)
    other = of(AdamW(model.parameters(), lr=rate, foreach=False), model)
    stage = {"elsewhere": {"class": "SGD", "lr": 3.0}}
    check_alike([one, other, stage, {}])


Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda own: AdamW(own, lr=0.25), "another lr: 0.5 on rank 0, 0.25 on 2"),
        (lambda own: AdamW(own, lr=0.5, betas=(0.9, 0.95)),
         "another betas: (0.9, 0.999) on rank 0, (0.9, 0.95) on 2"),
        (lambda own: AdamW(own, lr=0.5, weight_decay=0.0),
         "another weight_decay: 0.01 on rank 0, 0.0 on 2"),
        (lambda own: SGD(own, lr=0.5), "another class: AdamW on rank 0, SGD on 2"),
    ],
)  # fmt: skip
def test_other_settings_are_refused_with_both_values(make: Make, said: str) -> None:
    model = nn.Linear(2, 2)
    one, other = of(AdamW(model.parameters(), lr=0.5), model), of(make(model.parameters()), model)
    with pytest.raises(SpecError) as caught:
        check_alike([one, one, other])
    assert caught.value.field == "optimizer"
    assert f"the ranks step weight with {said}" in caught.value.problem
