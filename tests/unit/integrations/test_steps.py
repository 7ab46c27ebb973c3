"""Whether an optimizer has stepped."""

import torch
from torch import nn

from atoll_integrations.steps import OptimizerSteps, unwrapped


def test_a_step_that_a_scaler_skips_is_none_for_plain_and_fused_optimizers() -> None:
    for fused in (False, True):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        steps = OptimizerSteps([optimizer])
        for value, stepped in ((float("inf"), False), (1.0, True)):
            before = model.weight.detach().clone()
            scaler.scale((model(torch.ones(1, 2)) * value).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert steps.taken == stepped, (fused, value)
            assert torch.equal(before, model.weight) is not stepped
            steps.clear()
        steps.close()
        optimizer.step()
        assert not steps.taken


def test_the_optimizer_inside_a_wrapper_is_watched() -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert unwrapped(Wrapper(optimizer)) is optimizer
    steps = OptimizerSteps([Wrapper(optimizer)])
    optimizer.step()
    assert steps.taken
