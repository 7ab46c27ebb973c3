"""One step of an opening on all ranks: all go on, or all are refused in the same words.

A rank that raised by itself would leave the others waiting in their next collective.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from atoll_protos.errors import SpecError

T = TypeVar("T")


def together(group: dist.ProcessGroup | None, make: Callable[[], T]) -> list[T]:
    """What `make` returns on every rank of the group, by rank; None is the default group.

    Collective. Where `make` raises SpecError on some rank, the first is raised on all; it says on
    which rank, unless all have the same to say.
    """
    mine: T | SpecError
    try:
        mine = make()
    except SpecError as error:
        mine = error
    said: list[T | SpecError] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(said, mine, group=group)
    refused = {rank: what for rank, what in enumerate(said) if isinstance(what, SpecError)}
    if refused:
        rank, first = next(iter(refused.items()))
        everywhere = len(refused) == len(said) and len(set(map(str, refused.values()))) == 1
        problem = first.problem if everywhere else f"rank {rank}: {first.problem}"
        raise SpecError(first.field, problem, first.remedy)
    return [what for what in said if not isinstance(what, SpecError)]
