"""What each learner gives to a merge, and the most that it may say (rule 41)."""

import atoll_protos.v1.atoll_pb2 as pb
from atoll_syncer.model import log
from unit.syncer.fixtures import Play


def test_the_share_of_each_learner_is_in_status_and_tape(play: Play) -> None:
    play("round a-0 a-1 b-0 quorum=3; offer a-0 1 5; offer a-1 1 5")
    play.offer("b-0", 1, 5, counters=pb.Counters(steps=5, tokens=100))
    shares = {name: each.merge_share for name, each in play.slots.items()}
    play("tape commit 1")
    assert play.lines[0]["shares"] == shares
    assert {name: round(6 * share, 6) for name, share in shares.items()} == {
        "a-0": 1,
        "a-1": 1,
        "b-0": 4,
    }
    play("see slots.b-0.merge_tokens_per_step 20.0")


def test_merges_in_a_row_count_in_which_one_of_three_has_over_half(play: Play) -> None:
    play("begun a-0 a-1 b-0 quorum=3; merge_until 3 10 10 20")
    assert [each.merges_over_half for each in play.shown.slots] == [0, 0, 3]
    play("merge_until 4 10 10 10; see slots.b-0.merges_over_half 0")


def test_what_is_above_the_most_of_a_region_counts_as_that_and_is_named_rule_41(play: Play) -> None:
    play("begun a-0 a-1 b-0 quorum=3; limit 12; merge_until 1 10 10 1000")
    entry = next(each for each in play.one.entries if isinstance(each, log.Committed))
    steps = entry.participants[0].steps
    assert [part.tokens for part in entry.participants] == [10 * steps, 10 * steps, 12 * steps]
    assert entry.participants[2].weight == 144 * steps
    play("see slots.b-0.merge_tokens_per_step 12.0; see slots.a-0.above_tokens_per_step 0.0")
    play("see slots.b-0.above_tokens_per_step 1000.0; merge_until 2 10 10 11")
    play("see slots.b-0.above_tokens_per_step 0.0")


def test_the_tokens_of_a_report_count_up_to_the_most_of_its_region_rule_41(play: Play) -> None:
    play("begun b-0; limit 12; report b-0 1 tokens=1_000_000; report b-0 3 tokens=1_000_010")
    assert play.slots["b-0"].tokens == 12 + 10
