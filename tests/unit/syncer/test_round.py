"""When a round closes (rule 11), in which order it is summed (rule 12), and its end (rule 27)."""

import pytest

from atoll_syncer.model.log import Participant
from atoll_syncer.model.round import Round, decide, weight


def offer(slot: str, capture: int = 4) -> Participant:
    return Participant(
        slot=slot,
        incarnation=1,
        capture=capture,
        base=3,
        steps=capture,
        tokens=40,
        cursor=9,
        weight=1.0,
    )


def a_round(*complete: str, quorum: int = 1, grace: float = 2.0, last: bool = False) -> Round:
    each = Round(slice=0, due=8, base=3, opened_at=0.0, last=last)
    for slot in complete:
        each.add(offer(slot), now=10.0)
        each.note_quorum(quorum, grace, now=10.0)
    if last:
        each.deadline = 20.0
    return each


def test_it_closes_when_all_who_are_awaited_are_complete_rule_11() -> None:
    assert decide(a_round("a", "b"), awaited={"a", "b"}, quorum=1, now=10.0).close


def test_it_closes_when_the_grace_has_passed_since_the_kth_rule_11() -> None:
    each = a_round("a")
    waiting = decide(each, awaited={"a", "b"}, quorum=1, now=11.9)
    assert not waiting.close
    assert "b" in waiting.reason
    assert decide(each, awaited={"a", "b"}, quorum=1, now=12.0).close


def test_with_fewer_than_k_it_stays_open_however_long_rule_11() -> None:
    decision = decide(a_round("a", quorum=2), awaited={"a"}, quorum=2, now=1e6)
    assert not decision.close
    assert decision.reason == "1 of 2 for the quorum"


def test_the_grace_counts_from_the_kth_and_not_from_later_ones_rule_11() -> None:
    each = a_round("a")
    each.add(offer("b"), now=11.0)
    each.note_quorum(1, 9.0, now=11.0)
    assert (each.quorum_at, each.grace_seconds) == (10.0, 2.0)


def test_the_newest_capture_of_a_slot_takes_the_place_of_the_older_rule_13() -> None:
    each = a_round("a", "b")
    each.add(offer("a", 6), now=11.0)
    assert [(p.slot, p.capture) for p in each.participants] == [("a", 6), ("b", 4)]


def test_the_sum_is_in_slot_order_not_in_order_of_arrival_rule_12() -> None:
    assert [p.slot for p in a_round("c", "a", "b").participants] == ["a", "b", "c"]


def test_a_last_round_does_not_wait_beyond_its_deadline_rule_27() -> None:
    each = a_round("a", quorum=3, last=True)
    assert not decide(each, awaited={"a", "b"}, quorum=3, now=19.9).close
    assert decide(each, awaited={"a", "b"}, quorum=3, now=20.0).close
    assert decide(each, awaited={"a"}, quorum=3, now=11.0).close


def test_a_last_round_closes_with_nothing_when_no_offer_is_awaited_rule_27() -> None:
    assert decide(a_round(last=True), awaited=set(), quorum=1, now=0.0).close


@pytest.mark.parametrize(("steps", "tokens", "expected"), [(1, 10, 100.0), (4, 40, 400.0)])
def test_the_weight_is_quantity_times_quality(steps: int, tokens: int, expected: float) -> None:
    assert weight(steps, tokens) == expected


def three_at(*newer: tuple[str, float]) -> Round:
    """K is 2; offers of a, b and c are complete a second apart, and then these newer captures."""
    each = a_round()
    for slot, now in (("a", 10.0), ("b", 11.0), ("c", 12.0), *newer):
        each.add(offer(slot, round(now)), now)
        each.note_quorum(2, 2.0, now)
    return each


def test_the_grace_counts_again_from_the_kth_of_those_that_stay_rule_11() -> None:
    each = three_at()
    each.remove("a")
    each.count_grace_again(2)
    assert each.quorum_at == 12.0


def test_a_newer_capture_does_not_begin_the_grace_again_rule_11() -> None:
    each = three_at(("a", 15.0))
    each.remove("c")
    each.count_grace_again(2)
    assert each.quorum_at == 11.0
