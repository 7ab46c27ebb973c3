"""Tokens trained = merged + overlap + late + lost + pending (docs/protocol.md, rule 13)."""

from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.rules.learner_state import CAPTURES_KEPT, Offered, SliceState, outcome

ME = 4


def outcome_of(
    offered: dict[int, int], merged: pb.Merged | None, tokens: int
) -> tuple[int, int, int]:
    """Tokens that are merged, overlap and late, of those trained on version 7."""
    each = SliceState(shard=0, fragment=0, held=pb.Version(number=7), tokens=tokens)
    each.offered.captures.update(offered)
    became = outcome(each, merged or pb.Merged(), ME)
    return became["merged"], became["overlap"], became["late"]


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    offered=st.sets(st.integers(1, 4)),
    capture=st.integers(0, 5),
    base=st.integers(6, 8),
    incarnation=st.integers(ME - 1, ME + 1),
)
def test_every_token_has_exactly_one_outcome(
    steps: list[int], offered: set[int], capture: int, base: int, incarnation: int
) -> None:
    """Of several captures the Publish says which counts: a list of participants names slots alone.

    An earlier incarnation, or another base, may have offered a capture of the same number.
    """
    captures = {n: sum(steps[:n]) for n in offered if n <= len(steps)}
    merged = pb.Merged(incarnation=incarnation, base=base, capture=capture)
    became = outcome_of(captures, merged if capture else None, sum(steps))
    counts = (incarnation, base) == (ME, 7) and capture in captures
    late = captures[max(captures)] if captures else sum(steps)  # in no commit, or never offered
    taken = captures[capture] if counts else 0
    assert became == ((taken, sum(steps) - taken, 0) if counts else (0, sum(steps) - late, late))


def test_an_offer_taken_back_was_never_made_but_its_earlier_twin_was() -> None:
    offered = Offered()
    offered.add(2, 20)
    offered.add(2, 20)  # the same capture, called for again in another session
    offered.take_back(2)
    assert offered.captures == {2: 20}
    offered.add(3, 30)
    offered.take_back(2)
    assert offered.captures == {3: 30}
    offered.take_back(3)
    assert offered.captures == {}


def test_captures_kept_of_one_base_are_bounded() -> None:
    offered = Offered()
    for steps in range(1, 2 * CAPTURES_KEPT):
        offered.add(steps, steps)
    assert len(offered.captures) == CAPTURES_KEPT
    assert max(offered.captures.items()) == (2 * CAPTURES_KEPT - 1, 2 * CAPTURES_KEPT - 1)


def test_steps_and_tokens_are_counted_from_nothing_on_a_new_base() -> None:
    each = SliceState(shard=0, fragment=0)
    each.count(10)
    version = pb.Version(run="run", number=1, epoch=1)
    each.adopt(pb.Publish(version=pb.SliceVersion(version=version)))
    assert (each.steps, each.tokens) == (0, 0)
