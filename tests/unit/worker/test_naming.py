"""Names are those of the bare model's state dict, whatever wraps it."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from atoll_worker.model.parameters import travelling


class Net(nn.Module):
    """An attribute of its own is called as a wrapper's is."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.net: nn.Module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def parallel(model: nn.Module) -> nn.Module:
    return nn.DataParallel(model)


def compiled(model: nn.Module) -> nn.Module:
    found: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return found


def inner(model: Net) -> nn.Module:
    model.net = checkpoint_wrapper(model.net)
    return model


def both(model: Net) -> nn.Module:
    model.net = nn.DataParallel(checkpoint_wrapper(model.net))
    return nn.DataParallel(model)


def around(model: Net) -> nn.Module:
    model.net = checkpoint_wrapper(nn.DataParallel(model.net))
    return nn.DataParallel(model)


@pytest.mark.parametrize("wrap", [parallel, compiled, inner, both, around])
def test_a_learner_with_a_wrapper_has_the_names_of_one_without(wrap: object) -> None:
    bare = Net()
    names = [place.spec.name for place in travelling(bare)]
    wrapped = wrap(Net())  # type: ignore[operator]
    assert [place.spec.name for place in travelling(wrapped)] == names
    assert set(names) == bare.state_dict().keys()
