"""The outer step against torch's own SGD (2311.08105, algorithm 1, line 14; section 3.1)."""

import numpy as np
import pytest
import torch

from atoll_protos.transfer.arrays import F32, Array
from atoll_syncer.numbers.merge import nesterov_step


def stepped(start: Array, deltas: list[Array], block: int, momentum: float) -> Array:
    """The master after all steps, each made block by block."""
    master, buffer, work = start.copy(), np.zeros_like(start), np.empty_like(start)
    for given in deltas:
        delta = given.copy()
        for first in range(0, start.size, block):
            part = slice(first, first + block)
            step_of = master[part], buffer[part], delta[part], work[part]
            nesterov_step(*step_of, learning_rate=0.7, momentum=momentum)
    return master


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_outer_step_is_torchs_nesterov_sgd_and_the_same_bits_in_any_blocks(momentum: float) -> None:
    """Theta <- OuterOpt(Theta, Delta), Delta in the place of the gradient, over many steps.

    Torch computes in f64 here, so that each difference is a rounding of ours.
    """
    generator = np.random.default_rng(5)
    start = generator.standard_normal(5_003, F32)
    deltas = [generator.standard_normal(5_003, F32) * F32.type(10.0 ** -(n % 9)) for n in range(60)]
    parameter = torch.nn.Parameter(torch.from_numpy(start).double())
    peer = torch.optim.SGD([parameter], lr=0.7, momentum=momentum, nesterov=momentum > 0)
    for delta in deltas:
        parameter.grad = torch.from_numpy(delta).double()
        peer.step()
    found = stepped(start, deltas, 5_003, momentum)
    np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=2e-6, atol=2e-5)
    for block in (777, 64, 1000):
        assert np.array_equal(stepped(start, deltas, block, momentum), found)


def test_plain_gradient_descent_with_rate_one_adopts_the_mean_of_the_learners() -> None:
    """With Delta = Theta - theta, a rate of 1 and no momentum give FedAvg (2311.08105, 2)."""
    theta = np.array([1.0, 2.0, 4.0], F32)
    master = np.array([2.0, 2.0, 2.0], F32)
    buffer, delta, work = np.zeros(3, F32), master - theta, np.empty(3, F32)
    nesterov_step(master, buffer, delta, work, learning_rate=1.0, momentum=0.0)
    assert np.array_equal(master, theta)
