"""One step of an opening on all ranks: all go on, or all are refused in the same words.

A rank that raised by itself would leave the others waiting in their next collective.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from atoll_protos.errors import SpecError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A SpecError as it travels, for an exception with arguments of its own is not pickled."""

    field: str
    problem: str
    remedy: str


def together(group: dist.ProcessGroup | None, make: Callable[[], T]) -> list[T]:
    """What `make` returns on every rank of the group, by rank; None is the default group.

    Collective. The values are pickled. Where `make` raises SpecError on some rank, the first of
    these is raised on all; it says on which rank, unless all of them have the same to say.
    """
    mine: T | Refusal
    try:
        mine = make()
    except SpecError as error:
        mine = Refusal(error.field, error.problem, error.remedy)
    said: list[T | Refusal] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(said, mine, group=group)
    refused = {rank: what for rank, what in enumerate(said) if isinstance(what, Refusal)}
    if refused:
        rank, first = next(iter(refused.items()))
        everywhere = len(refused) == len(said) and len(set(refused.values())) == 1
        problem = first.problem if everywhere else f"rank {rank}: {first.problem}"
        raise SpecError(first.field, problem, first.remedy)
    return [what for what in said if not isinstance(what, Refusal)]
