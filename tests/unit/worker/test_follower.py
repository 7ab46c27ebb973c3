"""A rank that is no head: it gives and takes what it holds, and owns no values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import structlog
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from atoll_protos.job.layout import Slice, build_layout
from atoll_worker.errors import TransportLostError
from atoll_worker.link.messages import Adopt, Capture, Finished, Message
from atoll_worker.model.parameters import travelling
from atoll_worker.model.staging import DirectStaging, Pairs
from atoll_worker.model.undone import Watch
from atoll_worker.training.replica import Replica, state_of
from unit.worker.link_side import BOUNDARY
from unit.worker.masters import SgdWithMasters


@dataclass
class Ranks:
    """The others, as far as this rank hears of them: their slices are all of one value."""

    heard: list[Message] = field(default_factory=list)
    closed: bool = False
    given: list[tuple[int, int]] = field(default_factory=list)
    dealt: list[tuple[int, int]] = field(default_factory=list)
    pairs: Pairs = ()  # what this rank gets of a slice

    def commands(self) -> Sequence[Message]:
        heard, self.heard = self.heard, []
        return heard

    def gather(self, owned: Slice) -> None:
        self.given.append((owned.shard, owned.fragment))

    def deal(self, owned: Slice, values: Tensor | None) -> tuple[Pairs, list[bool]]:
        assert values is None
        self.dealt.append((owned.shard, owned.fragment))
        return self.pairs, [False] * len(self.pairs)

    def written(self) -> None:
        pass


def follower() -> tuple[Replica, Ranks]:
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))
    places = travelling(model)
    layout = build_layout([place.spec for place in places], 2, 2)
    ranks = Ranks()
    made = Replica(
        state=state_of(layout),
        ranks=ranks,  # type: ignore[arg-type]
        places=places,
    )
    return made, ranks


def step(made: Replica) -> None:
    work = made.apply_commands()
    adopted, captured = tuple(work.adopted), tuple(work.captured)
    made.report(replace(BOUNDARY, adopted=adopted, captured=captured), work)


def test_a_follower_gives_what_is_captured_and_takes_what_is_adopted() -> None:
    made, ranks = follower()
    made.capture_seed()
    assert ranks.given == list(made.state.slices)
    ranks.heard = [Capture(slices=((1, 1),)), Adopt(shard=0, fragment=1, number=3, blend=0.0)]
    step(made)
    assert ranks.given[-1] == (1, 1)
    assert ranks.dealt == [(0, 1)]
    ranks.heard = [Finished(again=((0, 0),))]
    step(made)
    assert made.state.finished
    assert ranks.dealt == [(0, 1), (0, 0)]


def test_the_end_of_the_heads_transport_process_ends_it() -> None:
    made, ranks = follower()
    ranks.closed = True
    with pytest.raises(TransportLostError, match="the transport process of rank 0 has ended"):
        step(made)


def train(
    made: Replica, ranks: Ranks, model: nn.Module, weight: Tensor, optimizer: Optimizer
) -> None:
    """Steps, with an adoption before every other one."""
    for number in range(10):
        ranks.heard = [Adopt(shard=0, fragment=0, number=number, blend=0.0)]
        ranks.pairs = [(weight, weight + 0.05 * torch.randn_like(weight))]
        step(made)
        for _ in range(2):
            model(torch.ones(2, 30)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            made.step_made()


def test_where_the_head_trains_nothing_another_rank_finds_masters_that_undo_adoptions() -> None:
    made, ranks = follower()
    model = made.places[0].module
    watch = made.watch = Watch(staging=DirectStaging())
    weight = next(model.parameters()).detach()
    optimizer = SgdWithMasters(model.parameters(), lr=1e-3)
    with structlog.testing.capture_logs() as lines:
        train(made, ranks, model, weight, optimizer)
    assert ["on_adopt" in line["event"] for line in lines] == [True]
    made.leave("it has failed")
    assert watch.over
    assert made.watch is None
