"""Checks of the digest of frozen parameters of a model that is cut: it is that of one process."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from atoll_worker.model.parameters import frozen_digest
from atoll_worker.ranks.redistribution import together
from local.ranks import models


def check_frozen(parts: Sequence[nn.Module]) -> None:
    """All ranks know the digest of the same model in one process."""
    found = frozen_digest(parts, lambda make: together(None, make), dist.get_rank())
    assert found == frozen_digest([models.seeded(models.PartlyFrozen)])
    assert not found.unread


def check_what_is_frozen_in_a_model_that_is_cut() -> None:
    case = models.fully_sharded(4, models.PartlyFrozen)
    assert case.model is not None
    check_frozen([case.model])


def check_what_is_frozen_in_a_pipeline() -> None:
    """The head has but one stage, and the other one is cut over ranks that the head is not of."""
    stages = (("tied",), ("mixed", "base"))
    meshes = models.mesh((0, 1)), models.mesh((2, 3))
    stage = dist.get_rank() // 2
    whole = models.seeded(models.PartlyFrozen)
    parts = [nn.ModuleDict({name: getattr(whole, name)}) for name in stages[stage]]
    for name in stages[stage]:
        fully_shard(getattr(whole, name), mesh=meshes[stage])
    check_frozen(parts)
