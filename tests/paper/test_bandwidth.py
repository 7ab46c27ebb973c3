"""The published bandwidths, by the formulas of `atoll plan` and by a model of one step."""

import pytest

from paper.bandwidth import data_parallel, planned
from paper.published import METHODS, PAIR_5B, PAIR_8_SITES, TABLE_4, UTILISATIONS
from paper.utilisation import FINE, MODELS, exchanges, interval, table, threshold, utilisation

WITHIN, WITHIN_OF_A_CELL = 0.05, 0.02


def test_5_billion_parameters_need_1_7_and_not_104_gigabits() -> None:
    """The paper's setting: P = H = 24, tau = 2, t = 1 s, bf16; a CU of 90%.

    The published 1.7 is the rate of one fragment. Two are on their way, so the link carries twice
    that.
    """
    before, after = PAIR_5B
    assert data_parallel(5e9, 1.0, 0.9) == pytest.approx(before, rel=WITHIN)
    link, slice_alone = planned(5 * 10**9, 1.0)
    assert slice_alone == pytest.approx(after, rel=WITHIN)
    assert link == pytest.approx(2 * slice_alone)
    assert planned(5 * 10**9, 1.0, wire={"up": "int8"})[0] == pytest.approx(after, rel=WITHIN)


def test_8_sites_need_0_84_and_not_198_gigabits() -> None:
    """No setting is published. 10 billion parameters a second of step fit, in exactly 4 bits."""
    before, after = PAIR_8_SITES
    assert data_parallel(1e10, 1.0, 0.9) == pytest.approx(before, rel=WITHIN)
    in_bf16, in_int4 = (planned(10**10, 1.0, wire={"up": up})[1] for up in ("bf16", "int4"))
    assert in_bf16 / 4 == pytest.approx(after, rel=WITHIN)
    # A block of 64 values of int4 has a scale of 32 bits: 4.5 bits a value.
    assert in_int4 == pytest.approx(after * 4.5 / 4, rel=WITHIN)
    assert planned(10**10, 1.0, wire={"up": "int4"}, period=27)[1] == pytest.approx(
        after, rel=WITHIN
    )


@pytest.mark.parametrize("size", TABLE_4)
def test_a_step_reaches_each_utilisation_where_the_table_says(size: str) -> None:
    """2501.18512, Table 4, with nothing fitted: all 75 cells, asked for within 10%."""
    model = MODELS[size]
    for (method, each), cells in zip(exchanges(model).items(), TABLE_4[size], strict=True):
        shares = utilisation(model, each, FINE)
        for least, cell in zip(UTILISATIONS, cells, strict=True):
            found = FINE[threshold(shares, least)]
            low, high = interval(cell)
            where = f"{method} at {least:.0%}: {found:.2f}, not {low:.2f} to {high:.2f} Gbit/s"
            assert low * (1 - WITHIN_OF_A_CELL) < found < high * (1 + WITHIN_OF_A_CELL), where


def test_71_of_75_cells_are_equal_to_the_last_digit() -> None:
    """The others are one point of the grid beside the published one."""
    ours = table()
    differ = {
        (size, method, least)
        for size, rows in TABLE_4.items()
        for method, theirs, mine in zip(METHODS, rows, ours[size], strict=True)
        for least, a, b in zip(UTILISATIONS, theirs, mine, strict=True)
        if a != b
    }
    assert differ == {
        ("10B", "streaming", 0.99),
        ("10B", "overlapped", 0.50),
        ("10B", "overlapped, 4 bits", 0.95),
        ("100B", "streaming", 0.99),
    }
