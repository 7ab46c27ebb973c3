"""What a learner is not made for is refused in one sentence before anything starts."""

from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from atoll_protos.errors import SpecError
from atoll_worker.learner import Learner
from atoll_worker.training import process, refusals


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "begin", lambda: pytest.fail("a process was started"))


def test_a_second_rank_is_refused_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SpecError) as caught:
        Learner(nn.Linear(2, 2)).open()
    assert str(caught.value).startswith("Learner: this is rank 1 of 4 processes that train one")
    assert "start one process for each learner (without torchrun)" in caught.value.remedy
    assert "open the Learner on rank 0 only and broadcast" in caught.value.remedy


def test_the_first_rank_is_warned_that_the_others_adopt_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusals.check_process({"RANK": "0", "WORLD_SIZE": "2"})
    assert "broadcast the parameters to the other ranks" in capsys.readouterr().out
    for alone in ({}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "1"}, {"WORLD_SIZE": "x"}):
        refusals.check_process(alone)
    assert capsys.readouterr().out == ""


def test_the_rank_of_torch_distributed_counts_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
    with pytest.raises(SpecError, match="this is rank 2 of 3 processes"):
        refusals.check_process({"RANK": "0", "WORLD_SIZE": "1"})


def test_a_model_of_dtensors_is_refused_also_on_a_single_rank(tmp_path: Path) -> None:
    """As torchtitan shards it by default; copying into it raised an error of torch."""
    distributed.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store"
    )
    try:
        model = nn.Linear(4, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(SpecError, match=r"model\.weight: is a DTensor.*whole model"):
            Learner(model).open()
    finally:
        distributed.destroy_process_group()


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
