"""A rank that is no head: it gives and takes what it holds, and owns no values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor, nn

from atoll_protos.job.layout import Slice, build_layout
from atoll_worker.errors import TransportLostError
from atoll_worker.link.messages import Adopt, Capture, Finished, Message
from atoll_worker.model.parameters import travelling
from atoll_worker.model.staging import Pairs
from atoll_worker.training.replica import Replica, state_of
from unit.worker.fixtures import BOUNDARY


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

    def deal(self, owned: Slice, values: Tensor | None) -> Pairs:
        assert values is None
        self.dealt.append((owned.shard, owned.fragment))
        return self.pairs

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
