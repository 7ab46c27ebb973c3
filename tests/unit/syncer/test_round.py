"""When a round closes (rule 11), in which order it is summed (rule 12), and its end (rule 27)."""

import pytest

from atoll_protos.means import MovingMean
from atoll_syncer.model.roster import Round, weight
from unit.syncer.log_side import a_participant

GRACE_SECONDS = 2.0


def a_round(offers: str, quorum: int = 1, *, last: bool = False) -> Round:
    """A round to which slots, each a letter, give an offer a second after the other, from 10 on."""
    each = Round(slice=0, due=8, base=3, opened_at=0.0, last=last, deadline=20.0 if last else None)
    for second, slot in enumerate(offers, 10):
        each.add(a_participant(slot, second, base=3), float(second))
        each.note_quorum(quorum, GRACE_SECONDS if second == 10 else 9.0, float(second))
    return each


@pytest.mark.parametrize(
    ("quorum", "last", "now", "over"),
    [
        (1, False, 11.9, False),
        (1, False, 12.0, True),  # the grace has passed since the K-th
        (2, False, 1e6, False),
        (3, True, 19.9, False),
        (3, True, 20.0, True),  # a last round waits for no quorum
    ],
)
def test_a_round_is_over_when_its_time_is_up_rules_11_and_27(
    quorum: int, last: bool, now: float, over: bool
) -> None:
    assert a_round("a", quorum, last=last).is_over(now) == over


def test_the_sum_is_in_slot_order_and_has_the_newest_capture_of_each_rules_12_and_13() -> None:
    each = a_round("caba")
    assert [(p.slot, p.capture) for p in each.participants] == [("a", 13), ("b", 12), ("c", 10)]
    assert (each.quorum_at, each.grace_seconds) == (10.0, GRACE_SECONDS)  # from the K-th alone


@pytest.mark.parametrize(("seconds", "comes"), [(3.0, True), (3.1, False), (None, True)])
def test_who_is_awaited_takes_no_longer_from_its_call_than_to_the_end_of_the_grace_rule_11(
    seconds: float | None, comes: bool
) -> None:
    each = a_round("a")  # whose grace is over at 12
    each.called["b"] = 9.0
    assert each.comes_in_time("b", MovingMean(seconds)) == comes


@pytest.mark.parametrize(("offers", "gone", "since"), [("abc", "a", 12.0), ("abca", "c", 11.0)])
def test_the_grace_counts_again_from_the_kth_of_those_that_stay_rule_11(
    offers: str, gone: str, since: float
) -> None:
    """A newer capture does not begin it again."""
    each = a_round(offers, quorum=2)
    each.remove(gone)
    each.count_grace_again(2)
    assert each.quorum_at == since


@pytest.mark.parametrize(("steps", "tokens", "expected"), [(1, 10, 100.0), (4, 40, 400.0)])
def test_the_weight_is_quantity_times_quality(steps: int, tokens: int, expected: float) -> None:
    assert weight(steps, tokens) == expected
