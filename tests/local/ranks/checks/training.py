"""Checks of what a learner of several ranks notices while it trains."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from atoll_protos.job.layout import build_layout
from atoll_worker.model.parameters import STEPS_BETWEEN, Unshared, travelling
from atoll_worker.model.staging import DirectStaging, assign
from atoll_worker.model.undone import Watch
from atoll_worker.ranks.redistribution import open_exchange, reshard, sharded_modules
from local.ranks import models
from unit.worker.masters import SgdWithMasters


def check_what_steps_undo() -> None:
    """Of a model that is cut the head finds masters as well, and warns of nothing else."""
    over = models.mesh((0, 1, 2, 3))
    for kind, accused in ((torch.optim.AdamW, False), (SgdWithMasters, True)):
        model = models.seeded(lambda: nn.Linear(64, 16, bias=False))
        fully_shard(model, mesh=over)
        optimizer = kind(model.parameters(), lr=1e-3)
        places = travelling(model)
        exchange = open_exchange([model], places, group=None, control=None)
        (owned,) = build_layout(exchange.table.specs, 1, 1).slices
        watch = Watch(staging=DirectStaging())
        warning = ""
        for round_number in range(8):
            values = exchange.gather(owned)
            if values is not None:
                values += torch.randn(values.shape, generator=models.drawn(round_number)) / 20
            pairs, averaged = exchange.deal(owned, values)
            sample = watch.before(pairs, averaged)
            assign(pairs, 0.0)
            assert sample is not None or watch.over
            if sample:
                watch.after(sample)
            for _ in range(2):
                model(torch.ones(2, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                warning = warning or watch.judge()
        assert bool(warning) == accused, kind


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
