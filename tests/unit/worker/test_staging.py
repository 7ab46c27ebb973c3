import pytest
import torch

from atoll_worker.training.staging import DirectStaging, staging_for


def test_a_capture_is_exact_in_f32_for_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        theta = torch.randn(5, 3).to(dtype)
        region = torch.zeros(15)
        assert DirectStaging().capture([(theta, region.view(5, 3))]).done()
        assert torch.equal(region.view(5, 3), theta.float())


def test_an_adoption_overwrites_or_blends() -> None:
    theta = torch.full((4,), 2.0)
    value = torch.full((4,), 1.0, dtype=torch.bfloat16)
    DirectStaging().adopt([(theta, value)], 0.75)
    assert theta.tolist() == [1.75] * 4
    DirectStaging().adopt([(theta, value)], 0.0)
    assert theta.tolist() == [1.0] * 4


def test_adopting_into_parameters_leaves_autograd_out() -> None:
    theta = torch.nn.Parameter(torch.zeros(3))
    DirectStaging().adopt([(theta, torch.ones(3))], 0.5)
    assert theta.requires_grad
    assert theta.grad_fn is None
    assert theta.tolist() == [0.5] * 3


def test_the_cpu_needs_no_registration() -> None:
    staging = staging_for(torch.device("cpu"), torch.zeros(8, dtype=torch.uint8))
    assert isinstance(staging, DirectStaging)
    assert staging.scalar(torch.tensor([3.5])).host.item() == 3.5


def test_a_number_that_was_read_stays_when_its_tensor_changes() -> None:
    value = torch.tensor([3.5])
    scalar = DirectStaging().scalar(value)
    value.zero_()
    assert scalar.host.item() == 3.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blend", [0.0, 0.3, 0.5, 0.9])
def test_a_value_that_is_the_learners_own_keeps_all_of_its_bits_rule_18(
    dtype: torch.dtype, blend: float
) -> None:
    """[Rotary frequencies rounded to bf16 turn position 4096 by more than a radian.]"""
    frequencies = (10000.0 ** -(torch.arange(0, 64, 2) / 64)).to(dtype)
    buffer = frequencies.clone()
    DirectStaging().adopt([(buffer, frequencies.float())], blend)
    assert torch.equal(buffer, frequencies)


@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_a_learner_that_has_diverged_is_healed_by_what_it_adopts(blend: float) -> None:
    theta = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    DirectStaging().adopt([(theta, torch.full((4,), 3.0))], blend)
    assert theta.tolist() == [3.0, 3.0, 3.0, 2.0 if blend else 3.0]
