"""What each learner gives to a merge, and the most that it may say (rule 41)."""

import pytest

import atoll_protos.v1.atoll_pb2 as pb
from atoll_protos.expected import Expected, Limit
from atoll_syncer.model.effects import Tape
from atoll_syncer.rules.status import status
from unit.syncer.shard_side import Side, begun, head_of


def limited(tokens: int, *regions: str) -> Expected:
    return Expected(limits=tuple(Limit(region=each, tokens_per_step=tokens) for each in regions))


def merged(one: Side, sessions: list[int], tokens: list[int], merges: int) -> None:
    """So many merges, of offers with so many tokens a step each."""
    t_m = steps = 0
    while one.state.history.commits < merges:
        t_m, steps = t_m + 1, steps + 1
        assert t_m < 40 * merges, "no round comes"
        one.now += 1.0
        for session in sessions:
            one.report(session, t_m)
        for session, call in one.sent("call"):
            said = tokens[sessions.index(session)] * t_m
            one.offer(session, call.slice, t_m, counters=pb.Counters(steps=t_m, tokens=said))


def slots(one: Side) -> dict[str, pb.SlotStatus]:
    return {each.slot: each for each in status(one.state, one.now).slots}


def test_the_share_of_each_learner_is_in_status_and_tape() -> None:
    one, sessions = begun("a-0", "a-1", "b-0", quorum=3)
    merged(one, sessions, [10, 10, 20], 1)
    shown = slots(one)
    assert {name: round(each.merge_share, 6) for name, each in shown.items()} == {
        "a-0": pytest.approx(1 / 6, abs=1e-6),
        "a-1": pytest.approx(1 / 6, abs=1e-6),
        "b-0": pytest.approx(2 / 3, abs=1e-6),
    }
    assert shown["b-0"].merge_tokens_per_step == 20.0
    (line,) = [each.record for each in one.take(Tape) if each.record["event"] == "commit"]
    assert line["shares"] == {name: each.merge_share for name, each in shown.items()}


def test_merges_in_a_row_count_in_which_one_of_three_has_over_half() -> None:
    one, sessions = begun("a-0", "a-1", "b-0", quorum=3)
    merged(one, sessions, [10, 10, 20], 3)
    assert {name: each.merges_over_half for name, each in slots(one).items()} == {
        "a-0": 0,
        "a-1": 0,
        "b-0": 3,
    }
    merged(one, sessions, [10, 10, 10], 4)
    assert slots(one)["b-0"].merges_over_half == 0


def test_of_two_learners_one_always_has_half_and_nothing_is_counted() -> None:
    one, sessions = begun("a-0", "b-0", quorum=2)
    merged(one, sessions, [10, 1000], 2)
    assert slots(one)["b-0"].merges_over_half == 0


def test_what_is_above_the_most_of_a_region_counts_as_that_and_is_named_rule_41() -> None:
    one, sessions = begun("a-0", "a-1", "b-0", quorum=3)
    one.feed(one.shard.expected_heard(limited(12, "b"), one.now))
    merged(one, sessions, [10, 10, 1000], 1)
    (entry,) = [head_of(one.entries, n) for n in (0, 1) if one.state.history.heads[n].number]
    steps = entry.participants[0].steps
    assert {part.slot: part.tokens for part in entry.participants} == {
        "a-0": 10 * steps,
        "a-1": 10 * steps,
        "b-0": 12 * steps,
    }
    assert entry.participants[2].weight == 144 * steps
    shown = slots(one)
    assert shown["b-0"].above_tokens_per_step == 1000.0
    assert shown["b-0"].merge_tokens_per_step == 12.0
    assert shown["a-0"].above_tokens_per_step == 0.0
    merged(one, sessions, [10, 10, 11], 2)
    assert slots(one)["b-0"].above_tokens_per_step == 0.0


def test_the_tokens_of_a_report_count_up_to_the_most_of_its_region_rule_41() -> None:
    one, (session,) = begun("b-0")
    one.feed(one.shard.expected_heard(limited(12, "b"), one.now))
    one.report(session, 1, tokens=1_000_000)
    one.report(session, 3, tokens=1_000_010)
    assert one.state.sessions.slots["b-0"].tokens == 12 + 10
