"""The outer step against torch's own SGD (2311.08105, algorithm 1, line 14; section 3.1)."""

import pytest
import torch

from atoll_syncer.numbers.outer import Outer, nesterov_step

torch.set_num_threads(1)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("block", [100_003, 65_536, 777, 64])
def test_outer_step_is_torchs_nesterov_sgd_bit_for_bit(momentum: float, block: int) -> None:
    """Theta <- OuterOpt(Theta, Delta), Delta in the place of the gradient, over many steps."""
    generator = torch.Generator().manual_seed(5)
    element_count = 100_003 if block > 1000 else 5_003
    parameter = torch.nn.Parameter(torch.randn(element_count, generator=generator))
    peer = torch.optim.SGD(
        [parameter], lr=0.7, momentum=momentum, nesterov=momentum > 0, foreach=False
    )
    master = parameter.detach().clone()
    buffer = torch.zeros(element_count)
    for step in range(60):
        delta = torch.randn(element_count, generator=generator) * 10.0 ** (-(step % 9))
        parameter.grad = delta.clone()
        peer.step()
        for first in range(0, element_count, block):
            part = slice(first, first + block)
            nesterov_step(
                master[part], buffer[part], delta[part], Outer(learning_rate=0.7, momentum=momentum)
            )
        assert torch.equal(master, parameter.detach())


def test_plain_gradient_descent_with_rate_one_adopts_the_mean_of_the_learners() -> None:
    """With Delta = Theta - theta, a rate of 1 and no momentum give FedAvg (2311.08105, 2)."""
    theta = torch.tensor([1.0, 2.0, 4.0])
    master = torch.tensor([2.0, 2.0, 2.0])
    nesterov_step(master, torch.zeros(3), master - theta, Outer(learning_rate=1.0, momentum=0.0))
    assert torch.equal(master, theta)
