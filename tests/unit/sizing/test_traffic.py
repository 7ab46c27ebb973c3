"""What goes over the border of each region, how long a fragment is under way, and who waits."""

import pytest

from atoll_operator.sizing.needs import traffic
from unit.sizing.cases import BILLION, given, spec_of


def test_a_learner_sends_n_b_over_h_t_on_average_where_a_fragment_is_due_at_every_tick() -> None:
    """With P = H = 24, whatever tau is (tests/cluster/test_wan.py measures it)."""
    for overlap in (1, 2, 6):
        moves = traffic(spec_of({"us": 1, "eu": 1}, sync={"overlap": overlap}), given(seconds=2.0))
        assert moves.up == moves.down == pytest.approx(BILLION * 16 / (24 * 2.0))


def test_the_border_of_the_syncers_region_carries_what_all_others_exchange() -> None:
    sync = {"wire": {"up": "int4"}}
    us, eu, asia = traffic(spec_of({"us": 4, "eu": 2, "asia": 1}, sync=sync), given()).borders
    assert eu.out == pytest.approx(2 * asia.out)
    assert eu.out < eu.into / 3
    assert us.out == pytest.approx(eu.into + asia.into)
    assert us.into == pytest.approx(eu.out + asia.out)
    assert us.into_peak == pytest.approx((eu.out_peak or 0) + (asia.out_peak or 0))
    alone = traffic(spec_of({"us": 4}), given())
    assert (alone.borders[0].out, alone.borders[0].into) == (0, 0)


def test_a_line_of_the_peak_rate_brings_a_fragment_back_just_in_time() -> None:
    spec = spec_of({"us": 1, "eu": 2}, sync={"overlap": 3})
    first = traffic(spec, given({"eu": (1.0, 0.1)})).borders[1]
    assert first.out_peak == first.into_peak
    rate = (first.out_peak or 0) / 1e9
    again = traffic(spec, given({"eu": (rate, 0.1)}))
    assert again.borders[1].way_seconds == pytest.approx(again.slack_seconds)


def test_no_rate_brings_a_fragment_back_within_an_overlap_that_is_shorter_than_the_round_trip() -> (
    None
):
    border = traffic(spec_of({"us": 1, "eu": 1}), given({"eu": (9.0, 2.0)})).borders[1]
    assert border.out_peak is None


def test_learners_share_the_line_of_their_region_and_that_of_the_syncers() -> None:
    spec = spec_of({"us": 1, "eu": 1, "asia": 1})
    wide = traffic(spec, given({"eu": (2.0, 0.0)})).borders[1]
    shared = traffic(spec, given({"us": (2.0, 0.0), "eu": (2.0, 0.0)})).borders[1]
    merge = (5 * 3 + 13) * BILLION / 24 * 1e-9
    assert (wide.way_seconds or 0) - merge == pytest.approx(2 * 16 / 24 / 2)
    assert (shared.way_seconds or 0) - merge == pytest.approx(2 * 16 / 24)


def test_a_long_and_wide_line_asks_for_more_connections() -> None:
    line = given({"eu": (1.0, 0.06)})
    assert traffic(spec_of({"us": 1, "eu": 1}), line).borders[1].lanes == 3


def test_free_learners_wait_for_no_link() -> None:
    moves = traffic(spec_of({"us": 1, "eu": 1}), given({"eu": (0.1, 0.1)}))
    assert (moves.waiting_share, moves.tick_seconds) == (0, 1.0)


def test_learners_of_diloco_wait_for_each_fragments_way() -> None:
    """An f32 model up and down after 20 steps."""
    spec = spec_of({"us": 1, "eu": 1}, sync={"preset": "DiLoCo", "period": 20})
    moves = traffic(spec, given({"eu": (8.0, 0.0)}))
    way = 2 * 32 / 8 + (5 * 2 + 13)
    assert moves.borders[1].way_seconds == pytest.approx(way)
    assert moves.waiting_share == pytest.approx(way / (20 + way))
    assert moves.tick_seconds == pytest.approx((20 + way) / 20)
    assert moves.up == pytest.approx(32 * BILLION / (20 + way))
    assert traffic(spec, given()).waiting_share is None


@pytest.mark.parametrize(
    ("overlap", "way", "waits"), [(1, 2.0, 0.5), (2, 2.0, 0.0), (4, 2.0, 0.0), (2, 4.0, 0.5)]
)
def test_an_overlap_of_learners_that_wait_hides_its_steps(
    overlap: int, way: float, waits: float
) -> None:
    """With an overlap of 2 two fragments are under way at once, in steps of half their way."""
    shape = {"preset": "StreamingDiLoCo", "period": 8, "fragments": 8, "overlap": overlap}
    sync = {**shape, "wire": {"up": "bf16"}}
    spec = spec_of({"us": 1, "eu": 1}, sync=sync, syncer={"shards": 64})
    merge = 23 / 8 / 64
    moves = traffic(spec, given({"eu": (2 * 16 / 8 / (way - merge), 0.0)}))
    assert moves.borders[1].way_seconds == pytest.approx(way)
    assert moves.waiting_share == pytest.approx(waits)
