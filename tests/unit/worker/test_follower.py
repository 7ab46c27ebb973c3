"""A rank that is no head but owns a host's share: its memory, and the lane process beside it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import structlog
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.job.layout import Slice, build_layout
from atoll_protos.transfer.division import Share
from atoll_worker.errors import TransportLostError
from atoll_worker.link.messages import Adopt, Boundary, Capture, Finished, Leaving, Message
from atoll_worker.link.shared_memory import memory_plan
from atoll_worker.link.socket import Link
from atoll_worker.model.parameters import travelling
from atoll_worker.model.staging import DirectStaging, Pairs
from atoll_worker.model.tensors import FLOATS, from_bytes
from atoll_worker.model.undone import Watch
from atoll_worker.training import process
from atoll_worker.training.follower import Follower
from atoll_worker.training.owner import TrainingOwner
from unit.worker.fake_transport import RUN_FILE
from unit.worker.link_side import BOUNDARY, owner_of
from unit.worker.masters import SgdWithMasters

SHARE = Share(2, 4, 6)  # the second of three hosts, with two lanes each


@dataclass
class Ranks:
    """The others, as far as this rank hears of them: their slices are all of one value."""

    heard: list[Message] = field(default_factory=list)
    closed: bool = False
    dealt: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    pairs: Pairs = ()  # what this rank gets of a slice

    def commands(self) -> Sequence[Message]:
        heard, self.heard = self.heard, []
        return heard

    def gather(self, owned: Slice) -> Tensor:
        return torch.full((len(SHARE.elements(owned.form)),), float(owned.fragment + 1))

    def empty(self, owned: Slice) -> Tensor:
        return torch.empty(len(SHARE.elements(owned.form)))

    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        self.dealt[owned.shard, owned.fragment] = values
        return self.pairs, [False] * len(self.pairs)

    def written(self) -> None:
        pass


@contextmanager
def follower() -> Iterator[tuple[Follower, Ranks, Link, TrainingOwner]]:
    """With the other end of its link, which is the lane process's."""
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))
    places = travelling(model)
    layout = build_layout([place.spec for place in places], 2, 2)
    plan = memory_plan(layout, RUN_FILE.sync, observer=False, share=SHARE)
    with owner_of(plan, DirectStaging()) as (owner, lane_process):
        ranks = Ranks()
        made = Follower(
            specs=layout.tensors,
            slices={(each.shard, each.fragment): each for each in layout.slices},
            ranks=ranks,  # type: ignore[arg-type]
            models=[model],
            places=places,
            owner=owner,
        )
        yield made, ranks, lane_process, owner


def step(made: Follower) -> None:
    work = made.apply_commands()
    adopted, captured = tuple(work.adopted), tuple(work.captured)
    made.report(replace(BOUNDARY, adopted=adopted, captured=captured), work)


def captured(owner: TrainingOwner, key: tuple[int, int]) -> Tensor:
    return from_bytes(owner.memory.capture(*key), torch.float32)


def test_the_lane_process_hears_of_captures_and_adoptions_and_of_no_other_step() -> None:
    with follower() as (made, ranks, lane_process, owner):
        step(made)
        assert lane_process.receive() == []
        ranks.heard = [Capture(slices=((1, 1),)), Adopt(shard=0, fragment=1, number=3, blend=0.0)]
        step(made)
        (told,) = lane_process.receive()
        assert isinstance(told, Boundary)
        assert (told.captured, told.adopted) == (((1, 1),), ((0, 1, 3),))
        assert bool((captured(owner, (1, 1)) == 2.0).all())
        assert owner.memory.counter(1, 1) == 2


def test_the_seed_is_in_the_memory_of_every_owner_before_its_process_is_told() -> None:
    with follower() as (made, _, lane_process, owner):
        made.capture_seed()
        for key in made.slices:
            assert bool((captured(owner, key) == key[1] + 1.0).all())
            assert owner.memory.counter(*key) == 2
        assert lane_process.receive() == []


def test_what_it_owns_of_an_adopted_slice_is_dealt_out_also_once_more_at_the_end() -> None:
    with follower() as (made, ranks, lane_process, owner):
        for number, key in enumerate(made.slices):
            region = owner.memory.adopt(*key)
            from_bytes(region, FLOATS[owner.memory.plan.adopt_encoding]).fill_(float(number))
        for key in made.slices:
            ranks.heard.append(Adopt(shard=key[0], fragment=key[1], number=1, blend=0.0))
        step(made)
        ranks.heard = [Finished(again=tuple(made.slices))]
        for _ in range(2):
            for number, key in enumerate(made.slices):
                values = ranks.dealt.pop(key)
                assert values is not None
                assert values.numel() == len(SHARE.elements(made.slices[key].form))
                assert bool((values == float(number)).all())
            step(made)
        assert made.finished
        assert len(lane_process.receive()) == 1  # what is taken again is no adoption


def test_the_end_of_its_lane_process_ends_it_but_not_once_all_is_final() -> None:
    with follower() as (made, ranks, lane_process, _):
        step(made)
        lane_process.close()
        with pytest.raises(TransportLostError, match=r"the lane process has ended \(exit code 0\)"):
            step(made)
        ranks.heard = [Finished()]
        step(made)
        step(made)


def test_the_end_of_the_heads_transport_process_ends_it() -> None:
    with follower() as (made, ranks, _, _):
        ranks.closed = True
        with pytest.raises(TransportLostError, match="the transport process of rank 0 has ended"):
            step(made)


def test_its_lane_process_leaves_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[object] = []
    monkeypatch.setattr(process, "stop", lambda *which, finished: stopped.append((which, finished)))
    with follower() as (made, _, lane_process, owner):
        made.finished = True
        made.leave("done")
        assert lane_process.receive() == [Leaving(reason="done")]
        assert stopped == [((owner.process, owner.link), True)]


def train(made: Follower, ranks: Ranks, weight: Tensor, optimizer: Optimizer) -> None:
    """Steps, with an adoption before every other one."""
    (model,) = made.models
    for number in range(10):
        ranks.heard = [Adopt(shard=0, fragment=0, number=number, blend=0.0)]
        ranks.pairs = [(weight, weight + 0.05 * torch.randn_like(weight))]
        step(made)
        for _ in range(2):
            model(torch.ones(2, 30)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            made.step_made()


def test_where_the_head_trains_nothing_another_rank_finds_masters_that_undo_adoptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "stop", lambda *_, finished: None)
    with follower() as (made, ranks, _, _):
        (model,) = made.models
        watch = made.watch = Watch(staging=DirectStaging())
        weight = next(model.parameters()).detach()
        optimizer = SgdWithMasters(model.parameters(), lr=1e-3)
        with structlog.testing.capture_logs() as lines:
            train(made, ranks, weight, optimizer)
        assert ["on_adopt" in line["event"] for line in lines] == [True]
        made.leave("it has failed")
        assert watch.over
        assert made.watch is None
