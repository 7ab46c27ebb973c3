"""Checks of what a learner of several ranks notices while it trains."""

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from atoll_worker.model.parameters import travelling
from atoll_worker.ranks.redistribution import reshard, sharded_modules
from atoll_worker.script.refusals import STEPS_BETWEEN, Unshared
from local.ranks import models


def check_what_is_unfrozen_later() -> None:
    """It is named where FSDP2 has the parameters in its hands, and nothing else is."""
    over = models.mesh((0, 1, 2, 3))
    model = models.seeded(models.Mixed)
    fully_shard(model.up, mesh=over)
    fully_shard(model, mesh=over)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looks = Unshared([model], travelling(model), [optimizer])
    looks.steps = STEPS_BETWEEN - 1
    with torch.no_grad():
        model(torch.arange(8))
    assert not isinstance(model.scale, DTensor)  # it is whole now
    assert looks.step_made() == ""
    reshard(sharded_modules([model]))
    model.frozen.requires_grad_(True)
    looks.steps = STEPS_BETWEEN - 1
    assert "only, neither merged nor exported: frozen.weight, frozen.bias;" in looks.step_made()
