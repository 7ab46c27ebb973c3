"""Flags that come once for each region, and prices of bytes. Each raises SpecError."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import typer

from atoll_operator.sizing.prices import Prices
from atoll_protos.errors import SpecError

DECIMAL: Final = r"\d{1,9}(?:\.\d{1,9})?"
PRICE: Final = re.compile(rf"(?:([^=]+)=)?({DECIMAL})")
FLAG: Final = "--price-per-gb"
PricePerGb = Annotated[
    list[str] | None,
    typer.Option(
        FLAG,
        metavar="[REGION=]PRICE",
        help="Of a GB that leaves a region, or any region: shows what bytes cost. Repeatable.",
    ),
]
Value = TypeVar("Value")


def by_region(read: Callable[[str], tuple[str, Value]], texts: Iterable[str]) -> dict[str, Value]:
    """A flag that comes once for each region."""
    found: dict[str, Value] = {}
    for text in texts:
        name, value = read(text)
        if name in found:
            raise SpecError(text, f"{name or 'any region'} is given twice", "give each once")
        found[name] = value
    return found


def price(flag: str, text: str, *, anywhere: bool = False) -> tuple[str, float]:
    """REGION=PRICE of a GB; with `anywhere` the region may be left out, and is empty then."""
    found = PRICE.fullmatch(text)
    if found is None or not (found[1] or anywhere):
        example = "eu-west=0.08, or 0.08 for all regions" if anywhere else "eu-west=0.08"
        raise SpecError(flag, f"{text!r} is no price", f"give REGION=PRICE of a GB as in {example}")
    return found[1] or "", float(found[2])


def prices(texts: Iterable[str]) -> Prices:
    """Those of `--price-per-gb`."""
    found = by_region(lambda text: price(FLAG, text, anywhere=True), texts)
    return Prices(other=found.pop("", None), by_region=found)
