"""Tokens trained = merged + overlap + late + lost + pending (docs/protocol.md, rule 13)."""

from hypothesis import given
from hypothesis import strategies as st

import atoll_protos.v1.atoll_pb2 as pb
from atoll_worker.rules.slices import CAPTURES_KEPT, Offered, Outcome, SliceState, outcome

ME = 4


def outcome_of(offered: dict[int, int], merged: pb.Merged | None, tokens: int = 100) -> Outcome:
    return outcome(Offered(dict(offered)), tokens=tokens, merged=merged, incarnation=ME, base=7)


def test_the_capture_that_counts_is_merged_and_what_follows_it_is_overlap() -> None:
    merged = pb.Merged(incarnation=ME, base=7, capture=3)
    assert outcome_of({3: 60}, merged) == Outcome(merged=60, overlap=40, late=0)


def test_of_two_captures_on_one_base_the_publish_says_which_counts() -> None:
    """[A participant list alone misleads a learner that was called twice.]"""
    merged = pb.Merged(incarnation=ME, base=7, capture=3)
    assert outcome_of({3: 60, 5: 90}, merged) == Outcome(merged=60, overlap=40, late=0)


def test_an_offer_in_no_commit_is_late_and_what_follows_it_is_overlap() -> None:
    for merged in (None, pb.Merged(incarnation=ME, base=6, capture=3)):
        assert outcome_of({3: 60}, merged) == Outcome(merged=0, overlap=40, late=60)


def test_work_that_was_never_offered_is_late() -> None:
    assert outcome_of({}, None) == Outcome(merged=0, overlap=0, late=100)


def test_what_an_earlier_incarnation_had_merged_is_not_this_ones() -> None:
    """[A participant list names the slot only.]"""
    merged = pb.Merged(incarnation=ME - 1, base=7, capture=3)
    assert outcome_of({3: 60}, merged) == Outcome(merged=0, overlap=40, late=60)


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    offered=st.sets(st.integers(1, 30)),
    capture=st.integers(0, 31),
    base=st.integers(6, 8),
    incarnation=st.integers(ME - 1, ME + 1),
)
def test_every_token_has_exactly_one_outcome(
    steps: list[int], offered: set[int], capture: int, base: int, incarnation: int
) -> None:
    captures = {n: sum(steps[:n]) for n in offered if n <= len(steps)}
    merged = pb.Merged(incarnation=incarnation, base=base, capture=capture)
    became = outcome_of(captures, merged if capture else None, sum(steps))
    assert became.merged + became.overlap + became.late == sum(steps)
    assert min(became.merged, became.overlap, became.late) >= 0
    counts = (incarnation, base) == (ME, 7) and capture in captures
    assert became.merged == (captures[capture] if counts else 0)


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
    assert offered.newest_tokens == 2 * CAPTURES_KEPT - 1


def test_steps_and_tokens_are_counted_from_nothing_on_a_new_base() -> None:
    each = SliceState(shard=0, fragment=0)
    each.count(10)
    version = pb.Version(run="run", number=1, epoch=1)
    each.adopt(pb.Publish(version=pb.SliceVersion(version=version)))
    assert (each.steps, each.tokens) == (0, 0)
