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
    DirectStaging().adopt([(theta, value)], 0.75, [False])
    assert theta.tolist() == [1.75] * 4
    DirectStaging().adopt([(theta, value)], 0.0, [False])
    assert theta.tolist() == [1.0] * 4


def test_adopting_into_parameters_leaves_autograd_out() -> None:
    theta = torch.nn.Parameter(torch.zeros(3))
    DirectStaging().adopt([(theta, torch.ones(3))], 0.5, [False])
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


@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_a_buffer_that_did_not_change_keeps_all_of_its_bits_rule_18(
    wire: torch.dtype, blend: float
) -> None:
    """[Rotary frequencies rounded to bf16 turn position 4096 by more than a radian.]"""
    frequencies = 10000.0 ** -(torch.arange(0, 64, 2) / 64)
    buffer = frequencies.clone()
    DirectStaging().adopt([(buffer, frequencies.to(wire))], blend, [True])
    assert torch.equal(buffer, frequencies)
    parameter = frequencies.clone()
    DirectStaging().adopt([(parameter, frequencies.to(wire))], 0.0, [False])
    assert torch.equal(parameter, frequencies.to(wire).float())


def test_a_buffer_that_changed_takes_the_value_where_it_changed_rule_18() -> None:
    buffer = torch.tensor([0.1, 0.2, 0.3])
    value = torch.tensor([0.1, 0.5, 0.3], dtype=torch.bfloat16)
    DirectStaging().adopt([(buffer, value)], 0.0, [True])
    assert buffer.tolist() == torch.tensor([0.1, 0.5, 0.3]).tolist()
