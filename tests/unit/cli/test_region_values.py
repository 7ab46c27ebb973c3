"""Prices of `--price-per-gb`, of one region or of all."""

import pytest

from atoll_operator.cli.region_values import prices
from atoll_operator.sizing.prices import Prices
from atoll_protos.errors import SpecError


def test_a_price_is_of_a_region_or_of_all_others() -> None:
    assert prices([]) == Prices()
    assert prices(["0.08"]) == Prices(other=0.08)
    found = prices(["eu-west=0.05", "0.08", "us=0"])
    assert found == Prices(by_region={"eu-west": 0.05, "us": 0.0}, other=0.08)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["cheap"], "'cheap' is no price; give REGION=PRICE of a GB as in eu-west=0.08, or 0.08"),
        (["=1"], "'=1' is no price"),
        (["eu=-1"], "'eu=-1' is no price"),
        (["1", "2"], "any region is given twice"),
        (["eu=1", "eu=1"], "eu is given twice"),
    ],
)
def test_what_is_no_price_is_refused(texts: list[str], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        prices(texts)
