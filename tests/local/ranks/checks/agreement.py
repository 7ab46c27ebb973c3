"""Checks of what the ranks of a learner agree about, what is refused, and the states they keep."""

from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from atoll_protos.errors import SpecError
from atoll_protos.names import DATA_STATE_BYTES_MAX
from atoll_worker.ranks.boxes import check_module
from atoll_worker.ranks.exchange import Exchange, open_exchange
from atoll_worker.ranks.reading import reading
from atoll_worker.ranks.states import gather, share
from atoll_worker.ranks.together import together
from atoll_worker.training.companion import lend
from atoll_worker.training.naming import cleaner
from atoll_worker.training.parameters import travelling, travelling_of
from local.ranks import models


def check_one_rank_that_has_cut_a_tensor() -> None:
    """All ranks say so, before the head reads."""
    over = models.mesh((0, 1, 2, 3))
    model = nn.Linear(4, 4).requires_grad_(False)
    cut = distribute_tensor(model.weight.data, over, [Shard(0)])
    if dist.get_rank() == 1:
        model.weight = nn.Parameter(cut, requires_grad=False)

    def read() -> None:
        with reading(None, [model], cleaner) as reader:
            lend([model], (), reader)
            raise AssertionError("the ranks do not agree")

    error = refused(read)
    assert (error.field, "ranks 0 and 1" in error.problem) == ("model.weight", True)


def refused(make: Callable[[], object]) -> SpecError:
    """The error that this rank gets."""
    try:
        make()
    except SpecError as error:
        return error
    raise AssertionError("it was not refused")


def check_ranks_that_disagree() -> None:
    """A plain tensor that is larger on one rank."""
    model = nn.Linear(3, 4 if dist.get_rank() == 2 else 3)
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert error.field == "model.bias"
    assert "shape: (3,) on rank 0, (4,) on 2" in error.problem


def check_ranks_that_train_nothing() -> None:
    """Of one alone it is right, and it has values where the others have them; not of all."""
    for trains in ((1, 2), ()):
        model = nn.Linear(3, 3).requires_grad_(dist.get_rank() in trains)

        def enter(model: nn.Module = model) -> object:
            return open_exchange([model], travelling_of([model]), group=None, control=None)

        if trains:
            assert cast(Exchange, enter()).device.type == "cpu"
        else:
            error = refused(enter)
            assert (error.field, error.problem) == ("model", "has no trainable parameter")


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


def check_a_shard_that_has_no_box() -> None:
    """Its local tensor is larger than the placement says."""
    over = models.mesh((0, 1, 2, 3))
    model = nn.Linear(3, 3)
    model.bias = nn.Parameter(models.misplaced(over))
    error = refused(lambda: open_exchange([model], travelling(model), group=None, control=None))
    assert (error.field, "has a shard of shape (2,)" in error.problem) == ("model.bias", True)


def check_one_name_twice() -> None:
    """Two stages of a pipeline on one rank whose names were not kept."""
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    places = [place for part in parts for place in travelling(part)]
    error = refused(lambda: open_exchange(parts, places, group=None, control=None))
    assert error.field == "model.bias"
    assert error.problem == "two tensors of this rank have this name"


def check_flat_parameters() -> None:
    """FSDP1, by the name of its module."""
    model = nn.Sequential(nn.Linear(2, 2))
    cpu = torch.device("cpu")
    model[0] = FullyShardedDataParallel(model[0], use_orig_params=True, device_id=cpu)
    error = refused(lambda: check_module(model))
    assert error.field == "model.0"
    assert "FSDP1" in error.problem
    fully_shard(sound := nn.Sequential(nn.Linear(2, 2)), mesh=models.mesh((0, 1, 2, 3)))
    check_module(sound)


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
        kept = gather(None, given[rank])
        assert rank == 0 or kept is None
        everybody: list[bytes | None] = [kept]
        dist.broadcast_object_list(everybody, 0)
        alone = set(given[1:]) <= {None, given[0]}
        assert share(everybody[0], rank, models.RANKS) == (given[0 if alone else rank], "")
    large = bytes([rank % 2]) * (most // 2)
    error = refused(lambda: gather(None, large))
    assert error.field == "state"
    assert error.problem.startswith("the states of 4 ranks have")
