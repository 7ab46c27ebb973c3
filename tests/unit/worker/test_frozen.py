"""The digest of frozen parameters is of their values, whatever they are made of (rule 3)."""

from typing import Any

import pytest
import torch
from torch import nn

from atoll_protos.errors import SpecError
from atoll_worker.model import parameters
from atoll_worker.model.parameters import frozen_digest
from unit.worker.fixtures import Quantised


class Model(nn.Module):
    """One frozen part, one that is trained, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.trained = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)


def digest_of(model: nn.Module) -> str:
    return frozen_digest([model]).digest


def test_it_is_of_frozen_parameters_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = Model()
    first = digest_of(model)
    with torch.no_grad():
        model.trained.weight += 1
        for buffer in model.norm.buffers():
            buffer.add_(1)
    assert digest_of(model) == first
    with torch.no_grad():
        model.frozen.bias[0] += 1e-6
    assert digest_of(model) != first
    assert digest_of(nn.DataParallel(model)) == digest_of(model)


def test_values_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    expected = digest_of(model)
    monkeypatch.setattr(parameters, "CHUNK_BYTES", 4)
    assert digest_of(model) == expected


class Odd(torch.Tensor):
    """As quantised tensors are: no plain bytes behind it."""

    error: type[RuntimeError] = NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "view":
            raise cls.error("no bytes")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Full(Odd):
    """On a device without room for a copy, which is no tensor without bytes."""

    error = torch.OutOfMemoryError


def with_frozen(**values: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    for name, value in values.items():
        model.register_parameter(name, nn.Parameter(value, requires_grad=False))
    return model


def test_a_device_without_room_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        digest_of(with_frozen(full=torch.ones(3).as_subclass(Full)))


def test_a_plain_tensor_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(parameters, "_flat", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        digest_of(Model())


def in_8_bits(value: int, scale: float) -> torch.Tensor:
    return Quantised(torch.full((3,), value, dtype=torch.int8), torch.tensor(scale))


@pytest.mark.parametrize(
    ("values", "different", "unread"),
    [
        ([(torch.eye(3) * value).to_sparse() for value in (1.0, 2.0)], 2, ()),
        ([in_8_bits(1, 1.0), in_8_bits(2, 1.0), in_8_bits(1, 2.0)], 3, ()),
        ([torch.fft.fft(torch.arange(4.0)).conj(), torch.fft.fft(torch.arange(4.0))], 2, ()),
        ([torch.ones(3).as_subclass(Odd)], 1, ("one", "two")),
    ],
)
def test_what_a_parameter_is_made_of_is_in_it_or_its_name_is_given(
    values: list[torch.Tensor], different: int, unread: tuple[str, ...]
) -> None:
    digests = set()
    for value in values:
        found = frozen_digest([with_frozen(one=values[0], two=value)])
        assert found.unread == unread
        assert bool(found.warning) == bool(unread)
        digests.add(found.digest)
    assert len(digests) == different


def test_of_several_ranks_the_lowest_that_has_a_parameter_sums_it() -> None:
    """Two stages: what each rank says is the same, and that of the whole model."""
    stages = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)]).requires_grad_(False)
    parts = [nn.ModuleDict({"0": stages[0]}), nn.ModuleDict({"0": stages[0], "1": stages[1]})]
    said: list[list[Any]] = [[], []]
    for _ in range(2):  # the second time all have said what the first time was not known
        for rank, part in enumerate(parts):
            step = iter(range(2))

            def gather(make: Any, rank: int = rank, step: Any = step) -> list[Any]:
                number = next(step)
                said[rank][number : number + 1] = [make()]
                return [theirs[number] if len(theirs) > number else {} for theirs in said]

            found = frozen_digest([part], gather, rank)
    assert found.digest == digest_of(stages)
    assert said[1][1].keys() == {"1.weight", "1.bias"}


def test_a_parameter_that_only_some_ranks_have_cut_is_refused() -> None:
    with pytest.raises(SpecError, match="a DTensor on only one of the ranks 0 and 2"):
        parameters._givers([{"w": False}, {}, {"w": True}])
