"""The text of a flag becomes a number, a link or a price. Each raises SpecError."""

import re
from typing import Final

from atoll_operator.cli import region_values
from atoll_operator.cli.region_values import DECIMAL
from atoll_operator.sizing.traffic import RegionLink
from atoll_protos.errors import SpecError

NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kMBT]?)")
TIMES: Final = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
REGION: Final = re.compile(rf"([^=]+)=({DECIMAL})(?:,({DECIMAL}))?")


def count(flag: str, text: str) -> int:
    """A whole number of at least 1, as in 350M."""
    found = NUMBER.fullmatch(text)
    number = int(float(found[1]) * TIMES[found[2]]) if found else 0
    if not number:
        raise SpecError(flag, f"{text!r} is no number", "give one as 350M, 12B or 1000000")
    return number


def positive(flag: str, text: str, example: str) -> float:
    """A decimal number above 0."""
    number = float(text) if re.fullmatch(DECIMAL, text) else 0.0
    if not number:
        raise SpecError(flag, f"{text!r} is no number above 0", f"give one, as in {example}")
    return number


def link(text: str) -> tuple[str, RegionLink]:
    found = REGION.fullmatch(text)
    if found is None or not float(found[2]):
        raise SpecError(
            "--link", f"{text!r} is no link", "give REGION=GBIT,MS as in eu-west=2.5,80"
        )
    return found[1], RegionLink(
        bits_per_second=float(found[2]) * 1e9, round_trip_seconds=float(found[3] or 0) / 1e3
    )


def price(text: str) -> tuple[str, float]:
    return region_values.price("--egress", text)
