"""Checks of what the ranks of a learner agree about, what is refused, and the states they keep."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from atoll_protos.errors import SpecError
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_worker.model.parameters import travelling
from atoll_worker.ranks.group import gather_states, share
from atoll_worker.ranks.redistribution import open_exchange, together
from local.ranks import models


def refused(make: Callable[[], object]) -> SpecError:
    """The error that this rank gets."""
    try:
        make()
    except SpecError as error:
        return error
    raise AssertionError("it was not refused")


def check_a_partial_sum() -> None:
    """It is refused on every rank, though only two have it."""
    over = models.mesh((0, 1))
    model = nn.Linear(3, 3)
    if dist.get_rank() < 2:
        partial = DTensor.from_local(torch.ones(3), over, [Partial()], run_check=False)
        model.bias = nn.Parameter(partial)
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert error.field == "model.bias"
    assert error.problem.startswith("rank 0: is a partial sum (P(sum)"), error


def check_one_name_twice() -> None:
    """Two stages of a pipeline on one rank whose names were not kept."""
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    places = [place for part in parts for place in travelling(part)]
    error = refused(lambda: open_exchange(parts, places, group=None, control=None))
    assert error.field == "model.bias"
    assert error.problem == "two tensors of this rank have this name"


def check_what_is_said_together() -> None:
    """Values come by rank; one refusal is everybody's, and says whose it is."""
    assert together(None, dist.get_rank) == [0, 1, 2, 3]

    def only_two() -> None:
        if dist.get_rank() >= 2:
            raise SpecError("tensor", f"is odd on {dist.get_rank()}", "mend it")

    error = refused(lambda: together(None, only_two))
    assert str(error) == "tensor: rank 2: is odd on 2; mend it"

    def all_alike() -> None:
        raise SpecError("tensor", "is odd", "mend it")

    assert str(refused(lambda: together(None, all_alike))) == "tensor: is odd; mend it"


def check_states() -> None:
    """Every rank gets its own back; together they are at most 1 MiB; equal ones count once."""
    rank, most = dist.get_rank(), DATA_STATE_BYTES_MAX
    of_ranks: list[tuple[bytes | None, ...]] = [
        (None, None, None, None),
        (b"one", None, None, None),
        (b"one", b"one", b"two", b"two"),
        (None, b"", b"three", b"four"),
        (b"x" * most,) * models.RANKS,
    ]
    for given in of_ranks:
        kept = gather_states(None, given[rank])
        assert rank == 0 or kept is None
        everybody: list[bytes | None] = [kept]
        dist.broadcast_object_list(everybody, 0)
        alone = set(given[1:]) <= {None, given[0]}
        assert share(everybody[0], rank, models.RANKS) == (given[0 if alone else rank], "")
    large = bytes([rank % 2]) * (most // 2)
    error = refused(lambda: gather_states(None, large))
    assert error.field == "state"
    assert error.problem.startswith("the states of 4 ranks have")
