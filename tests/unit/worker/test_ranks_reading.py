"""What the head reads of other ranks, without processes: the others' notes are made up."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atoll_protos.errors import SpecError
from atoll_worker.ranks import whole_tensors
from atoll_worker.ranks.whole_tensors import Note, Reader

Theirs = dict[str, Note]


def agreed(monkeypatch: pytest.MonkeyPatch, mine: dict[str, torch.Tensor], *others: Theirs) -> Any:
    """A head that has `mine`, beside ranks 1, 2, ... that have the others."""

    def together(_: object, make: Callable[[], Any]) -> list[Any]:
        own, said = make()
        return [(own, said), *((each, said) for each in others)]

    monkeypatch.setattr(whole_tensors, "together", together)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: 0)
    reader = Reader(mine, alone=False)
    reader.agree({}, "said", checksum=lambda _: 0)
    return reader


def note(*shape: int, cut: bool = False) -> Note:
    return Note(torch.float32, shape, cut)


def test_what_others_alone_have_is_asked_of_the_lowest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    received: list[int] = []

    def receive(data: torch.Tensor, *, group: object, group_src: int) -> None:
        received.append(group_src)
        data.view(torch.float32).copy_(torch.arange(2.0))

    own = torch.ones(3)
    reader = agreed(monkeypatch, {"a": own}, {"b": note(2)}, {"a": note(3), "b": note(2)})
    monkeypatch.setattr(torch.distributed, "broadcast", lambda word, **_: asked.append([*word]))
    monkeypatch.setattr(torch.distributed, "recv", receive)
    assert reader.whole(own) is own
    assert not asked
    stand_in = reader.tensors["b"]
    assert reader.is_remote(stand_in)
    assert stand_in.is_meta
    assert reader.whole(stand_in).tolist() == [0, 1]
    assert (received, asked) == ([1], [[1, 1]]), "VALUES of the second name, from rank 1"


def test_a_tensor_that_is_cut_on_one_rank_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="is a DTensor on only one of the ranks 0 and 2") as caught:
        agreed(monkeypatch, {"a": torch.ones(3)}, {"a": note(3)}, {"a": note(3, cut=True)})
    assert caught.value.field == "model.a"
