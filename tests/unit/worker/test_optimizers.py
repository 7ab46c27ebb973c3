"""Ranks of a learner step the same tensor with the same settings."""

import pytest
import torch
from torch import nn

from atoll_protos.errors import SpecError
from atoll_worker.training.optimizers import Settings, check_alike, settings
from atoll_worker.training.parameters import travelling


def of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Settings:
    return settings([optimizer], travelling(model))


def test_equal_settings_pass_also_where_a_rate_is_a_tensor_and_stages_differ() -> None:
    model = nn.Linear(2, 2)
    one = of(torch.optim.AdamW(model.parameters(), lr=0.5), model)
    rate = torch.tensor(0.5)
    other = of(torch.optim.AdamW(model.parameters(), lr=rate, foreach=False), model)
    stage = {"elsewhere": {"class": "SGD", "lr": 3.0}}
    check_alike([one, other, stage, {}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": 0.25}, "another lr: 0.5 on rank 0, 0.25 on 2"),
        ({"betas": (0.9, 0.95)}, "another betas: (0.9, 0.999) on rank 0, (0.9, 0.95) on 2"),
        ({"weight_decay": 0.0}, "another weight_decay: 0.01 on rank 0, 0.0 on 2"),
    ],
)
def test_other_settings_are_refused_with_the_tensor_and_both_values(
    change: dict[str, object], said: str
) -> None:
    model = nn.Linear(2, 2)
    one = of(torch.optim.AdamW(model.parameters(), lr=0.5), model)
    other = of(torch.optim.AdamW(model.parameters(), **{"lr": 0.5, **change}), model)  # type: ignore[arg-type]
    with pytest.raises(SpecError) as caught:
        check_alike([one, one, other])
    assert caught.value.field == "optimizer"
    assert "the ranks step weight with" in caught.value.problem
    assert said in caught.value.problem


def test_another_optimizer_is_refused() -> None:
    model = nn.Linear(2, 2)
    one = of(torch.optim.RMSprop(model.parameters(), lr=0.5), model)
    other = of(torch.optim.SGD(model.parameters(), lr=0.5), model)
    with pytest.raises(
        SpecError, match="the ranks step weight with another class: RMSprop on rank 0"
    ):
        check_alike([one, other])
