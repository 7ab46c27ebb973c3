import pytest
import torch

from atoll_protos.errors import SpecError
from bytegpt.model import ByteGPT, Size

SMALL = Size(layers=1, heads=2, width=16, context=8)


def test_the_same_seed_gives_the_same_model_whatever_the_callers_generator_did() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = ByteGPT(SMALL, seed=7)
    assert torch.equal(torch.rand(3), expected), "it is left alone"
    second = ByteGPT(SMALL, seed=7)
    other = ByteGPT(SMALL, seed=8)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_a_prediction_looks_back_only() -> None:
    model = ByteGPT(SMALL, seed=0)
    with torch.no_grad():  # the outputs of blocks start at zero
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
    tokens = torch.randint(256, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:])


def test_the_default_model_is_of_the_documented_size_and_starts_near_a_uniform_guess() -> None:
    model = ByteGPT(Size(), seed=0)
    assert sum(each.numel() for each in model.parameters()) == 426_624
    windows = torch.randint(256, (4, 97), generator=torch.Generator().manual_seed(0))
    assert model.loss(windows).item() == pytest.approx(6.0, abs=1.0)


def test_a_width_that_heads_do_not_divide_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"width: 20 does not divide into 4 heads.*multiple of 8"):
        Size(width=20)
    with pytest.raises(SpecError, match="layers: is 0"):
        Size(layers=0)
