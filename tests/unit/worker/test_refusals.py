"""What a learner is not made for is refused in one sentence before anything starts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.observer import Observer
from atoll_worker.script import refusals
from atoll_worker.training import replica


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "begin", lambda: pytest.fail("a process was started"))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Of this process alone."""
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", rank=0, world_size=1, init_method=store)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("follows", [False, True])
def test_ranks_that_accelerate_does_not_know_are_refused(
    follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.accelerator_state = SimpleNamespace(num_processes=1)  # type: ignore[attr-defined]
    learner = Learner(model, None if follows else optimizer)
    begin = partial(learner.follow, optimizer, tokens=1) if follows else learner.open
    with pytest.raises(SpecError, match="accelerate knows 1 of 2 processes") as caught:
        begin()
    assert caught.value.remedy == "without GPUs give Accelerator(cpu=True)"


def test_ranks_without_a_process_group_are_refused_on_every_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "4")
        with pytest.raises(SpecError) as caught:
            Learner(nn.Linear(2, 2)).open()
        assert str(caught.value).startswith(f"Learner: this is rank {rank} of 4 processes without")
        assert "call torch.distributed.init_process_group() before" in caught.value.remedy
        assert "start one process for each learner (without torchrun)" in caught.value.remedy


def test_one_process_is_a_learner_whatever_its_launcher_says() -> None:
    for alone in ({}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "1"}, {"WORLD_SIZE": "x"}):
        refusals.check_ranks(alone)


def test_the_process_group_counts_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    refusals.check_ranks({"RANK": "1", "WORLD_SIZE": "4"})


@pytest.mark.usefixtures("group")
def test_an_observer_has_the_whole_model_in_one_process() -> None:
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(SpecError, match=r"model\.weight: is a DTensor.*whole model"):
        Observer(model).__enter__()


@pytest.mark.usefixtures("group")
def test_fsdp1_is_refused_by_the_name_of_what_replaces_it() -> None:
    model = FullyShardedDataParallel(
        nn.Linear(4, 4),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        device_id=torch.device("cpu"),
    )
    with pytest.raises(SpecError, match=r"FSDP1.*fully_shard"):
        Learner(model).open()


def test_a_list_of_modules_is_a_model_of_several_ranks_only() -> None:
    with pytest.raises(SpecError, match=r"model: is a list of 2 modules; give one: nn.ModuleList"):
        Learner([nn.Linear(2, 2), nn.Linear(2, 2)]).open()
    with pytest.raises(SpecError, match=r"model: is an empty list"):
        Learner([]).open()


def test_a_lazy_module_is_refused_until_it_has_a_shape() -> None:
    model = nn.LazyLinear(2)
    with pytest.raises(SpecError, match=r"model\.weight: has no shape yet .*run one batch"):
        Learner(model).open()
    model(torch.ones(1, 3))
    Learner(model).open().close()


def test_a_model_on_the_meta_device_is_refused() -> None:
    with pytest.raises(SpecError, match=r"model\.weight: is on the meta device"):
        Learner(nn.Linear(2, 2, device="meta")).open()


def test_what_is_no_module_is_refused_by_its_type() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for given, name in ((optimizer, "SGD"), (model.parameters(), "generator"), (None, "NoneType")):
        with pytest.raises(SpecError, match=rf"model: {name} is no torch.nn.Module.*before any"):
            Learner(given).open()  # type: ignore[arg-type]


def test_what_cannot_be_called_is_no_function_for_on_adopt() -> None:
    with pytest.raises(SpecError, match=r"on_adopt: NoneType cannot be called; give a function"):
        Learner(nn.Linear(2, 2)).on_adopt(None)  # type: ignore[arg-type]
